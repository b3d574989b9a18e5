"""`kubectl apply -k` of an example makes all that its job names."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from images import targets
from testing import paths
from testing.operator import rendering
from tfparallel_operator.api import load, names

pytestmark = pytest.mark.timeout(1200)  # the first run builds kubectl

EXAMPLES = sorted({file.parent for file in paths.example_jobs()})
of_every_example = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)


def _jobs(folder: Path, objects: rendering.Objects) -> list[rendering.Manifest]:
    """The job of the kustomization, and those that are applied one by one besides."""
    files = paths.example_jobs(folder.name)
    return [*objects.of_kind(names.KIND), *(yaml.safe_load(file.read_text()) for file in files)]


def _named(node: Any, field: str) -> set[str]:
    """The strings of a field, wherever it is."""
    return {value for value in _nodes(node, field) if isinstance(value, str)}


def _nodes(node: Any, field: str) -> list[Any]:
    """The values of a field, wherever it is."""
    if isinstance(node, list):
        return [value for inner in node for value in _nodes(inner, field)]
    if not isinstance(node, dict):
        return []
    here = [node[field]] if field in node else []
    return here + [value for inner in node.values() for value in _nodes(inner, field)]


@of_every_example
def test_a_kustomization_makes_what_the_jobs_of_its_example_name(
    folder: Path, kustomize: rendering.Render
) -> None:
    objects = kustomize(str(folder.relative_to(paths.ROOT)))
    assert len(objects.of_kind(names.KIND)) == 1
    code = {m["metadata"]["name"]: m["data"] for m in objects.of_kind("ConfigMap")}
    claims = {m["metadata"]["name"] for m in objects.of_kind("PersistentVolumeClaim")}
    for manifest in _jobs(folder, objects):
        spec = load.parse_job(manifest).spec
        sources = {source["name"] for source in _nodes(manifest, "configMap")}
        assert sources == {folder.name} == {*code}
        assert _named(manifest["spec"], "claim") | _named(manifest["spec"], "claimName") == claims
        if spec.trainer is not None:
            assert spec.trainer.module in code[folder.name]
    for file, content in code[folder.name].items():
        assert content == (folder / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("folder", "kinds"),
    [
        ("queue/quota", {"ClusterQueue", "LocalQueue", "ResourceFlavor"}),
        ("tfrecords/data", {"ConfigMap", "Job", "PersistentVolumeClaim"}),
    ],
)
def test_one_command_creates_what_an_example_needs(
    folder: str, kinds: set[str], kustomize: rendering.Render
) -> None:
    objects = kustomize(f"examples/{folder}")
    assert {kind for kind in kinds if len(objects.of_kind(kind)) == 1} == kinds
    example = folder.partition("/")[0]
    page = (paths.EXAMPLES / example / "README.md").read_text(encoding="utf-8")
    assert f"$ kubectl apply -k examples/{folder}\n" in page


@of_every_example
def test_claims_bind_on_any_storage_class(folder: Path, kustomize: rendering.Render) -> None:
    objects = kustomize(str(folder.relative_to(paths.ROOT)))
    for claim in objects.of_kind("PersistentVolumeClaim"):
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
        assert "storageClassName" not in claim["spec"]
    for manifest in _jobs(folder, objects):
        spec = load.parse_job(manifest).spec
        if objects.of_kind("PersistentVolumeClaim") and spec.mesh is None:  # a mesh prefers it
            assert spec.scheduling is not None
            assert spec.scheduling.topology_keys == ("kubernetes.io/hostname",)


@of_every_example
def test_a_component_gives_every_replica_that_computes_its_gpus(
    folder: Path, kustomize: rendering.Render, tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(paths.EXAMPLES)
    overlay = {
        "resources": [f"../examples/{folder.name}"],
        "components": ["../examples/components/gpu"],
    }
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay/kustomization.yaml").write_text(yaml.safe_dump(overlay))
    before = load.parse_job(kustomize(str(folder)).one(names.KIND)).spec.tf_replica_specs
    after = load.parse_job(kustomize(str(tmp_path / "overlay")).one(names.KIND)).spec
    for role, replica in after.tf_replica_specs.items():
        computes = role == "Worker" or (role == "Chief" and "PS" not in after.tf_replica_specs)
        assert replica.devices == (load.devices_of(before[role]) if computes else None)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, whose one entry for the image names a registry."""
    copy = tmp_path_factory.mktemp("elsewhere") / "examples"
    shutil.copytree(paths.EXAMPLES, copy)
    file = copy / "components/image/kustomization.yaml"
    text = file.read_text(encoding="utf-8")
    name = f"newName: {targets.TRAINER.repository}"
    assert text.count(name) == 1
    there = f"newName: registry.example/{targets.TRAINER.repository}"
    file.write_text(text.replace(name, there), encoding="utf-8")
    return copy


@of_every_example
def test_one_entry_chooses_where_the_image_of_scripts_comes_from(
    folder: Path, elsewhere: Path, kustomize: rendering.Render
) -> None:
    objects = kustomize(str(elsewhere / folder.name))
    images = _named(objects.one(names.KIND)["spec"], "image")
    job = load.parse_job(objects.one(names.KIND))
    expected = targets.TRAINER.full_reference("registry.example", "")
    assert images == (set() if job.spec.trainer else {expected})
