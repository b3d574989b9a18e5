"""From a job's file to a job in a cluster."""

import asyncio
import itertools
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
import yaml

from testing import invocation, paths, screens, waiting
from testing.operator.namespaces import Namespace
from tfparallel import errors, job_variables, source_packing, submission
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel_operator.api import load
from tfparallel_operator.api_server import resources

DIGITS = paths.ROOT / "examples/digits"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The main example, with a package next to its module."""
    for name in ("job.yaml", "model.py"):
        shutil.copy(DIGITS / name, tmp_path)
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers/blocks.py").write_text("SIZE = 3\n")
    return tmp_path


def test_a_job_brings_the_files_next_to_it(folder: pathlib.Path) -> None:
    prepared = submission.read(folder / "job.yaml", (), submission.Additions("mine", "10Gi"))
    [config_map] = prepared.sources
    trainer = prepared.job["spec"]["trainer"]
    assert trainer["source"]["archive"]["configMaps"] == [config_map["metadata"]["name"]]
    assert config_map["metadata"]["name"].startswith("mine-source-")
    [claim] = prepared.companions
    assert claim["metadata"]["name"] == trainer["checkpoint"]["claim"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "10Gi"}}
    assert load.parse_manifest(prepared.job).metadata.name == "mine"


def test_a_config_map_of_the_file_is_the_source(folder: pathlib.Path) -> None:
    job = yaml.safe_load((folder / "job.yaml").read_text())
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job["spec"]["trainer"]["source"]["configMap"]["name"]},
        "data": {"model.py": "x = 1\n"},
    }
    file = folder / "both.yaml"
    file.write_text(yaml.safe_dump_all([config_map, job]))
    prepared = submission.read(file)
    assert prepared.sources == ()
    assert prepared.companions == [config_map]
    assert prepared.job["spec"] == job["spec"]


def test_a_name_that_is_no_name_of_the_file_has_no_line(folder: pathlib.Path) -> None:
    with pytest.raises(load.SpecError, match=r"^metadata\.name must begin"):
        submission.read(folder / "job.yaml", (), submission.Additions("Mine"))


def test_variables_and_secrets_are_added(folder: pathlib.Path) -> None:
    assignments = ["spec.trainer.env=[{name: MODE, value: slow}, {name: KEPT, value: a}]"]
    additions = submission.Additions(variables={"MODE": "fast"}, secrets=["bucket"])
    prepared = submission.read(folder / "job.yaml", assignments, additions)
    trainer = prepared.job["spec"]["trainer"]
    assert trainer["env"] == [{"name": "KEPT", "value": "a"}, {"name": "MODE", "value": "fast"}]
    assert trainer["envFrom"] == [{"secretRef": {"name": "bucket"}}]


def test_a_variable_goes_before_that_of_a_template(folder: pathlib.Path) -> None:
    env = "[{name: MODE, value: slow}, {name: KEPT, value: a}]"
    role = "spec.tfReplicaSpecs.Worker"
    assignments = [f"{role}.template.spec.containers=[{{name: tensorflow, env: {env}}}]"]
    additions = submission.Additions(variables={"MODE": "fast"})
    spec = submission.read(folder / "job.yaml", assignments, additions).job["spec"]
    [container] = spec["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "KEPT", "value": "a"}]
    assert spec["trainer"]["env"] == [{"name": "MODE", "value": "fast"}]


def test_a_variable_of_a_job_whose_trainer_is_null_comes_to_its_containers() -> None:
    containers = [{"name": "tensorflow"}, {"name": "sidecar"}]
    roles = {"Worker": {"template": {"spec": {"containers": containers}}}}
    job = {"spec": {"trainer": None, "tfReplicaSpecs": roles}}
    changed = job_variables.add(job, {"MODE": "fast"}, ["bucket"])
    [container, sidecar] = changed["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"][
        "containers"
    ]
    assert container == {
        "name": "tensorflow",
        "env": [{"name": "MODE", "value": "fast"}],
        "envFrom": [{"secretRef": {"name": "bucket"}}],
    }
    assert sidecar == {"name": "sidecar"}


def test_a_variable_that_the_operator_sets_is_refused(folder: pathlib.Path) -> None:
    additions = submission.Additions(variables={"TF_CONFIG": "{}"})
    with pytest.raises(load.SpecError, match="TF_CONFIG"):
        submission.read(folder / "job.yaml", (), additions)


def test_a_job_whose_image_has_the_code_brings_nothing(folder: pathlib.Path) -> None:
    (folder / "model.py").unlink()
    prepared = submission.read(folder / "job.yaml", ["spec.trainer.source=null"])
    assert prepared.sources == ()


@pytest.mark.parametrize(
    ("document", "claim", "reason"),
    [
        ({"kind": "Deployment"}, None, "holds Deployment, and a submission brings only"),
        (None, "10Gi", "--claim 10Gi: the job names no claim"),
    ],
)
def test_what_a_submission_cannot_bring_is_named(
    folder: pathlib.Path, document: dict[str, str] | None, claim: str | None, reason: str
) -> None:
    job = yaml.safe_load((folder / "job.yaml").read_text())
    if claim is not None:
        del job["spec"]["trainer"]["checkpoint"]
    (folder / "job.yaml").write_text(yaml.safe_dump_all([d for d in (document, job) if d]))
    with pytest.raises(load.SpecError, match=reason):
        submission.read(folder / "job.yaml", (), submission.Additions(claim_size=claim))


@pytest.mark.parametrize(
    ("text", "image", "reason"),
    [
        ("def build_model(:", None, r"^model\.py:1: received .*SyntaxError: invalid syntax"),
        ("def build_model(): ...", None, "the function training_data is missing"),
        ("import no_such_package\n{text}", None, None),
        ("type Later = int", "mine:1", None),
    ],
    ids=["syntax", "function", "package-of-the-image", "python-of-the-image"],
)
def test_a_module_that_no_pod_could_import_is_not_sent(
    folder: pathlib.Path, text: str, image: str | None, reason: str | None
) -> None:
    module = folder / "model.py"
    module.write_text(text.format(text=module.read_text()))
    job = yaml.safe_load((folder / "job.yaml").read_text())
    if image is not None:
        for role in job["spec"]["tfReplicaSpecs"].values():
            role["template"]["spec"]["containers"][0]["image"] = image
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
    if reason is None:
        assert submission.read(folder / "job.yaml").sources
        return
    with pytest.raises(load.SpecError, match=reason):
        submission.read(folder / "job.yaml")


def context_of(namespace: Namespace) -> access.Context:
    return access.find(
        access.ConnectionOptions(
            kubeconfig=str(namespace.cluster.kubeconfig), namespace=namespace.name
        )
    )


async def test_sources_belong_to_the_job(namespace: Namespace, folder: pathlib.Path) -> None:
    (folder / "weights.bin").write_bytes(os.urandom(source_packing.CHUNK_BYTES))
    prepared = submission.read(folder / "job.yaml", (), submission.Additions(claim_size="1Gi"))
    assert len(prepared.sources) == 2
    async with cluster_backend.ClusterBackend(context_of(namespace)) as cluster:
        job = await cluster.submit(prepared)
        for config_map in prepared.sources:
            path = resources.CONFIG_MAPS.path(namespace.name, config_map["metadata"]["name"])
            [owner] = (await namespace.api.get(path))["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["name"]) == (job.uid, "digits")
        claim = resources.CLAIMS.path(namespace.name, "digits")
        assert "ownerReferences" not in (await namespace.api.get(claim))["metadata"]
        with pytest.raises(errors.Failure, match="job 'digits' exists in namespace"):
            await cluster.submit(prepared)


async def test_a_submission_that_was_cut_off_goes_on(
    namespace: Namespace, folder: pathlib.Path
) -> None:
    """What a command that died has left, or a job that is being deleted still owns, is used."""
    prepared = submission.read(folder / "job.yaml")
    [config_map] = prepared.sources
    left = dict(config_map)
    left["metadata"] = {
        **config_map["metadata"],
        "ownerReferences": [
            {
                "apiVersion": "tfparallel.dev/v1alpha1",
                "kind": "TFParallelJob",
                "name": "digits",
                "uid": "11111111-2222-3333-4444-555555555555",
            }
        ],
    }
    await namespace.api.create(resources.CONFIG_MAPS, namespace.name, left)
    async with cluster_backend.ClusterBackend(context_of(namespace)) as cluster:
        job = await cluster.submit(prepared)
    path = resources.CONFIG_MAPS.path(namespace.name, config_map["metadata"]["name"])
    owners = (await namespace.api.get(path))["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == [job.uid]


async def test_a_dry_run_prints_what_kubectl_would_take(
    namespace: Namespace, folder: pathlib.Path
) -> None:
    arguments = ("submit", "job.yaml", "--claim", "1Gi", "--dry-run")
    done = invocation.run(*arguments, folder=folder, check=True)
    documents = list(yaml.safe_load_all(done.stdout))
    kinds = [document["kind"] for document in documents]
    assert kinds == ["PersistentVolumeClaim", "ConfigMap", "TFParallelJob"]
    await namespace.api.create(resources.JOBS, namespace.name, documents[-1])


def submit_command(namespace: Namespace, *options: str) -> tuple[str, ...]:
    where = invocation.where(namespace)
    return (*invocation.PROGRAM, "submit", "job.yaml", *options, *where)


async def test_ctrl_c_without_a_terminal_leaves_the_job_running(
    namespace: Namespace, folder: pathlib.Path
) -> None:
    with subprocess.Popen(
        submit_command(namespace),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        shown = list(
            itertools.takewhile(lambda line: "waiting for the operator" not in line, lines)
        )
        assert "tfparalleljob/digits created with" in shown[0]
        process.send_signal(signal.SIGINT)
        last = process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT
    assert "digits is still running; follow it: tfparallel logs -f digits" in last
    assert (await namespace.api.get(resources.JOBS.path(namespace.name, "digits")))["spec"]


@pytest.mark.parametrize(
    ("answer", "sentence", "remaining"),
    [
        ("delete", "digits deleted", set()),
        ("leave", "digits is still running; follow it:", {"digits"}),
        ("", "digits is still running; follow it:", {"digits"}),
    ],
    ids=["delete", "leave", "default"],
)
async def test_ctrl_c_on_a_terminal_asks_what_becomes_of_the_job(
    namespace: Namespace, folder: pathlib.Path, answer: str, sentence: str, remaining: set[str]
) -> None:
    def act() -> int:
        with screens.recorded(submit_command(namespace), folder, os.environ) as terminal:
            terminal.wait_for("waiting for the operator")
            terminal.interrupt()
            terminal.wait_for("digits is still running. Leave it, or delete it?")
            terminal.type(answer)
            terminal.wait_for(sentence)
            return terminal.wait(waiting.LIMIT_SECONDS)

    assert await asyncio.to_thread(act) == 128 + signal.SIGINT
    jobs = (await namespace.api.list(resources.JOBS, namespace.name)).items
    assert {job["metadata"]["name"] for job in jobs} == remaining


async def test_a_detached_submission_returns_at_once(
    namespace: Namespace, folder: pathlib.Path
) -> None:
    command = submit_command(namespace, "-d")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "job 'digits' exists in namespace" in again.stderr
    assert "Traceback" not in again.stderr
