"""The files of a script's job: which template wants them, and how they come to its pods."""

import pathlib
import shutil
from typing import Any

import pytest
import yaml

from testing import pages, paths
from testing.operator.namespaces import Namespace
from tfparallel import source_packing, submission
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.job_source import source as local_source
from tfparallel_operator.api import load, names
from tfparallel_operator.api_server import resources

Json = dict[str, Any]
EXAMPLES = ("fit", "old-fit", "old-coordinator", "tf-config")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The example of a script, with a package next to it."""
    for name in ("job.yaml", "train.py"):
        shutil.copy(paths.EXAMPLES / "fit" / name, tmp_path)
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers/blocks.py").write_text("SIZE = 3\n")
    return tmp_path


def change(folder: pathlib.Path, **fields: Any) -> None:
    """Change the container of both roles, which are one object by YAML's anchor."""
    job = yaml.safe_load((folder / "job.yaml").read_text())
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"][0] |= fields
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def pods(prepared: submission.Submission) -> list[Json]:
    return [role["template"]["spec"] for role in prepared.job["spec"]["tfReplicaSpecs"].values()]


def test_an_init_container_of_each_role_unpacks_the_files(folder: pathlib.Path) -> None:
    prepared = submission.read(folder / "job.yaml")
    [config_map] = prepared.sources
    assert len(pods(prepared)) == 2
    for pod in pods(prepared):
        [fetching], [container] = pod["initContainers"], pod["containers"]
        assert (fetching["name"], fetching["image"]) == (names.SOURCE_CONTAINER, container["image"])
        assert fetching["command"][:5] == [
            *("python", "-m", "tfparallel_trainer.source", "--source", "/workspace/source")
        ]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["source"] == {"name": "source", "emptyDir": {}}
        assert "persistentVolumeClaim" in volumes["output"]
        [projected] = volumes["tfparallel-chunks"]["projected"]["sources"]
        assert projected["configMap"]["name"] == config_map["metadata"]["name"]
        mounts = {mount["name"]: mount for mount in fetching["volumeMounts"]}
        assert mounts["source"] == {
            "name": "source",
            "mountPath": "/workspace/source",
            "readOnly": False,
        }
        assert [mount["name"] for mount in container["volumeMounts"]] == ["source", "output"]
    assert load.parse_manifest(prepared.job).metadata.name == "fit"


def test_requirements_are_installed_for_the_script(folder: pathlib.Path) -> None:
    (folder / "requirements.txt").write_text("einops\n")
    for pod in pods(submission.read(folder / "job.yaml")):
        assert pod["initContainers"][0]["command"][-4:] == [
            *("--requirements", "requirements.txt", "--packages", "/workspace/packages")
        ]
        [container] = pod["containers"]
        assert {"name": "PYTHONPATH", "value": "/workspace/packages"} in container["env"]


def test_variables_go_into_the_container_that_trains(folder: pathlib.Path) -> None:
    additions = submission.Additions(variables={"MODE": "fast"}, secrets=["bucket"])
    for pod in pods(submission.read(folder / "job.yaml", (), additions)):
        [container] = pod["containers"]
        assert {"name": "MODE", "value": "fast"} in container["env"]
        assert {"secretRef": {"name": "bucket"}} in container["envFrom"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_of_a_script_can_be_submitted(example: str) -> None:
    prepared = submission.read(
        paths.EXAMPLES / example / "job.yaml", (), submission.Additions("mine")
    )
    assert prepared.sources
    assert all(pod["initContainers"] for pod in pods(prepared))


@pytest.mark.parametrize(
    "fields",
    [
        {"workingDir": "/elsewhere"},
        {"volumeMounts": [{"name": "source", "mountPath": "/workspace/source", "subPath": "a"}]},
        {"volumeMounts": []},
    ],
    ids=["not-the-working-directory", "part", "not-mounted"],
)
def test_a_config_map_of_other_use_is_left_alone(folder: pathlib.Path, fields: Json) -> None:
    change(folder, **fields)
    prepared = submission.read(folder / "job.yaml")
    assert prepared.sources == ()
    assert "initContainers" not in pods(prepared)[0]


def test_a_config_map_of_the_file_is_the_source(folder: pathlib.Path) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fit"}}
    config_map["data"] = {"train.py": "x = 1\n"}
    job = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(f"{yaml.safe_dump(config_map)}---\n{job}")
    prepared = submission.read(folder / "job.yaml")
    assert (prepared.sources, len(prepared.companions)) == ((), 1)


@pytest.mark.parametrize(
    ("command", "is_refused"),
    [
        (["python", "trian.py"], True),
        (["python", "-m", "layers"], False),
        (["python", "/opt/train.py"], False),
        (["python", "./layers/blocks.py"], False),
    ],
)
def test_the_script_has_to_be_there(
    folder: pathlib.Path, command: list[str], *, is_refused: bool
) -> None:
    change(folder, command=command)
    if not is_refused:
        assert submission.read(folder / "job.yaml").sources
        return
    field = r"spec\.tfReplicaSpecs\.Chief\.template\.spec\.containers\[0\]\.command"
    with pytest.raises(load.SpecError, match=f"^{field}: 'trian.py' does not exist in "):
        submission.read(folder / "job.yaml")


def test_a_claim_of_checkpoints_is_refused(folder: pathlib.Path) -> None:
    with pytest.raises(load.SpecError, match=r"--claim 1Gi: the job has no spec\.trainer"):
        submission.read(folder / "job.yaml", (), submission.Additions(claim_size="1Gi"))


def test_the_job_of_the_page_gets_the_files(tmp_path: pathlib.Path) -> None:
    [text] = pages.blocks(paths.PAGES / "how-to/submit.md", "yaml")
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "train.py").write_text("x = 1\n")
    prepared = submission.read(tmp_path / "job.yaml")
    [config_map], [expected] = (
        prepared.sources,
        source_packing.pack(tmp_path, None).config_maps("any"),
    )
    assert config_map["binaryData"] == expected["binaryData"]
    assert [pod["initContainers"][0]["name"] for pod in pods(prepared)] == [names.SOURCE_CONTAINER]


async def test_the_api_server_takes_the_job(namespace: Namespace, folder: pathlib.Path) -> None:
    prepared = submission.read(folder / "job.yaml")
    choice = access.ConnectionOptions(
        kubeconfig=str(namespace.cluster.kubeconfig), namespace=namespace.name
    )
    async with cluster_backend.ClusterBackend(access.find(choice)) as cluster:
        job = await cluster.submit(prepared)
    assert job.roles["Worker"]["template"]["spec"] == pods(prepared)[1]
    [config_map] = prepared.sources
    path = resources.CONFIG_MAPS.path(namespace.name, config_map["metadata"]["name"])
    [owner] = (await namespace.api.get(path))["metadata"]["ownerReferences"]
    assert owner["uid"] == job.uid


def test_a_local_run_takes_the_same_folder(folder: pathlib.Path) -> None:
    assert local_source.read(folder / "job.yaml").folder == folder.resolve()
