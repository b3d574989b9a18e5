"""The manifests of the examples are valid, ask for CPU and memory, and run without GPUs."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from images import targets
from testing import pages, paths
from testing.operator import builders
from tfparallel.convert import file_conversion as convert
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import layout, replicas

JOBS = paths.example_jobs()
EXAMPLES = sorted({file.parent for file in JOBS})

of_every_job = pytest.mark.parametrize(
    "file", JOBS, ids=lambda file: f"{file.parent.name}/{file.name}"
)
of_every_example = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)


@functools.cache
def _document(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@functools.cache
def _job(file: Path) -> types.TFParallelJob:
    return load.parse_job(_document(file))


def _containers(file: Path) -> list[dict[str, Any]]:
    """The containers that train, one of each role."""
    roles = _document(file)["spec"]["tfReplicaSpecs"].values()
    return [
        container
        for role in roles
        for container in role["template"]["spec"]["containers"]
        if container["name"] == names.CONTAINER
    ]


def test_every_folder_is_an_example() -> None:
    folders = {file.parent for file in paths.EXAMPLES.glob("*/*") if file.is_file()}
    assert folders == {*EXAMPLES, paths.EXAMPLES / "notebook"}
    assert all((folder / "README.md").exists() for folder in folders)


@of_every_job
def test_one_job_alone_asks_for_gpus(file: Path) -> None:
    devices = {role.devices for role in _job(file).spec.tf_replica_specs.values()}
    assert devices == {1 if file.parent.name == "gpu-class" else None}


def test_the_index_lists_every_example_with_its_strategy() -> None:
    index = (paths.EXAMPLES / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)/README\.md\) \|.*?\| (.*?) \|", index, re.M)
    assert [name for name, *_ in rows] == [folder for _, folder, _ in rows]
    listed = {folder: strategy for _, folder, strategy in rows}
    assert listed.keys() == {folder.name for folder in EXAMPLES} | {"notebook"}
    for folder in EXAMPLES:
        jobs = map(_job, paths.example_jobs(folder.name))
        strategies = {layout.build(job).strategy.value for job in jobs}
        assert {*re.findall(r"`(\w+)`", listed[folder.name])} == strategies, folder.name


def test_the_job_after_a_tfjob_is_what_convert_writes() -> None:
    folder = paths.EXAMPLES / "from-tfjob"
    [file] = convert.convert([folder / "tfjob.yaml"], write_defaults=True).files
    assert file.after == (folder / "job.yaml").read_text(encoding="utf-8")


@of_every_job
def test_every_replica_requests_and_limits_cpu_and_memory(file: Path) -> None:
    assert len(_containers(file)) == len(_job(file).spec.tf_replica_specs)
    for container in _containers(file):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert {*requests} == {*limits} == {"cpu", "memory"}


@of_every_job
def test_images_are_those_that_the_dockerfile_builds(file: Path) -> None:
    brings_a_script = _job(file).spec.trainer is None
    expected = targets.TRAINER.reference if brings_a_script else None
    assert {container.get("image") for container in _containers(file)} == {expected}


@of_every_job
def test_pods_meet_the_level_restricted(file: Path) -> None:
    job = _job(file)
    for role in job.spec.tf_replica_specs:
        pod = builders.a_pod(job, replicas.Replica(role, 0))["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod.get("hostNetwork")
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


@of_every_example
def test_the_page_of_an_example_shows_how_to_run_it(folder: Path) -> None:
    page = folder / "README.md"
    blocks = pages.blocks(page, "console")
    lines = [command.line for block in blocks for command in pages.commands(block)]
    where = folder.relative_to(paths.ROOT)
    assert f"kubectl apply -k {where}" in lines
    assert any(line.startswith(f"tfparallel run {where}/") for line in lines)
    text = page.read_text(encoding="utf-8")
    assert all(file.name in text for file in paths.example_jobs(folder.name))
