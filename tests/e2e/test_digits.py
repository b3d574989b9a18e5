"""The README's path to a cluster, word by word, and everything that a person can see of the job."""

import asyncio
import dataclasses
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from testing import invocation, pages, paths, waiting
from testing.e2e import exported, kubectl_namespaces, operator, terminal, volumes
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.results import claim, event_files, files, stores
from tfparallel_operator.api import names

pytestmark = [pytest.mark.timeout(1800)]

ACCURACY = 0.9
README_SECONDS = 600.0
"""What the README's commands may take once the images are on the node: a ceiling, not a measure."""

COMMANDS = pages.find_commands(pages.README, "helm install")


@dataclasses.dataclass(frozen=True)
class Seen:
    """One version of the job."""

    state: str
    step: str
    loss: str


@dataclasses.dataclass(frozen=True)
class Run:
    """What became of the example."""

    namespace: kubectl_namespaces.KubectlNamespace
    volume: volumes.Volume
    history: list[Seen]
    pods: dict[str, kubectl_namespaces.Object]
    """As they were while it ran: what has not ended with the chief is deleted."""

    job: kubectl_namespaces.Object
    table: str
    """What the README's watch has printed."""

    log: str
    seconds: float
    """From the first command to the log."""


@pytest.fixture(scope="module")
def run(
    module_namespace: kubectl_namespaces.KubectlNamespace, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    namespace = module_namespace
    folder = tmp_path_factory.mktemp("readme")
    volume = volumes.provide(namespace, "digits")
    operator.uninstall(namespace.cluster)
    shell = terminal.shell(namespace, folder)
    *before, watch, logs = (command.line for command in COMMANDS)
    begin = time.monotonic()

    def left() -> float:
        return README_SECONDS - (time.monotonic() - begin)

    with namespace.watching(folder / "seen"):
        for line in before:
            shell.run(line, left())
        with shell.watching(watch, folder / "table"):
            namespace.wait("digits", lambda status: status.get("state") == "Running", left())
            pods = namespace.pods("digits")
            job = namespace.wait_ended("digits", left())
            table = waiting.until(
                (folder / "table").read_text,
                "the last line",
                when=lambda text: " Succeeded " in text,
            )
        log = shell.run(logs, left())
    seconds = time.monotonic() - begin
    history = [_seen(version) for version in kubectl_namespaces.versions(folder / "seen")]
    return Run(namespace, volume, history, pods, job, table, log, seconds)


def _seen(version: kubectl_namespaces.Object) -> Seen:
    status = version.get("status", {})
    progress = status.get("progress", {})
    return Seen(
        state=status.get("state", ""),
        step=str(progress.get("step", "")),
        loss=progress.get("metrics", {}).get("loss", ""),
    )


def test_it_succeeds(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nREADME, on a cluster: {run.seconds:.0f} s of at most {README_SECONDS:.0f} s")
    status = run.job["status"]
    assert status["state"] == "Succeeded", run.namespace.describe("digits")
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions["Succeeded"] == "True"
    assert conditions["Running"] == "False"
    assert status["restarts"] == {"failure": 0, "disruption": 0}
    assert status["observedGeneration"] == run.job["metadata"]["generation"]


def test_states_follow_each_other(run: Run) -> None:
    states = [sample.state for sample in run.history]
    in_order = list(dict.fromkeys(state for state in states if state))
    assert in_order == ["Pending", "Running", "Succeeded"]


def test_step_and_loss_are_seen_while_it_runs(run: Run) -> None:
    reported = [sample for sample in run.history if sample.state == "Running" and sample.step]
    assert reported
    assert all(sample.loss for sample in reported)
    steps = [int(sample.step) for sample in reported]
    assert steps == sorted(steps)
    total = run.job["status"]["progress"]["totalSteps"]
    assert 0 < steps[0] < total


def test_the_readme_shows_the_table_that_kubectl_prints(run: Run) -> None:
    [watch] = [command for command in COMMANDS if "--watch" in command.line]
    header, *lines = run.table.splitlines()
    assert header.split() == watch.shown[0].split()
    shown = watch.shown[1].split()
    # Whether a line has a time to go depends on how fast the machine is.
    assert shown[:4] in [line.split()[:4] for line in lines], run.table
    assert lines[-1].split()[:4] == ["digits", "Succeeded", "MultiWorkerMirrored", "2/2"]


def test_pods_are_the_operators(run: Run) -> None:
    assert set(run.pods) == {"digits-chief-0", "digits-worker-0"}
    for pod in run.pods.values():
        [owner] = pod["metadata"]["ownerReferences"]
        assert owner["uid"] == run.job["metadata"]["uid"]
        managed = pod["metadata"]["managedFields"]
        creators = {entry["manager"] for entry in managed if not entry.get("subresource")}
        assert creators == {names.FIELD_MANAGER}


def test_logs_tell_of_the_training(run: Run) -> None:
    assert "digits-worker-0.digits:2222" in run.log
    assert "accuracy" in run.log


def test_last_report_stays_in_the_status(run: Run) -> None:
    progress = run.job["status"]["progress"]
    assert progress["step"] == progress["totalSteps"]
    assert progress["percent"] == 100
    assert float(progress["metrics"]["val_accuracy"]) >= ACCURACY
    assert float(progress["metrics"]["loss"]) < 1.0


@pytest.fixture
def reader(run: Run, tmp_path: Path) -> terminal.Shell:
    """A terminal of an account with the rights that the page on `get model` names, and no more."""
    namespace = run.namespace
    [role] = pages.blocks(paths.PAGES / "how-to/get-model.md", "yaml")
    namespace.kubectl("apply", "--filename=-", input=role)
    namespace.kubectl("create", "serviceaccount", "reader")
    account = f"--serviceaccount={namespace.name}:reader"
    namespace.kubectl("create", "rolebinding", "reader", "--role=get-model", account)
    token = namespace.kubectl("create", "token", "reader").strip()
    shell = terminal.shell(namespace, tmp_path)
    shell.run(f"kubectl config set-credentials reader --token={token}")
    shell.run("kubectl config set-context --current --user=reader")
    return shell


def test_saved_model_loads_with_plain_keras(
    run: Run, reader: terminal.Shell, tmp_path: Path
) -> None:
    model = _get_model(run.namespace, reader, tmp_path / "results")
    accuracy = exported.accuracy(model, operator.example("digits", "model.py"))
    reported = float(run.job["status"]["progress"]["metrics"]["val_accuracy"])
    assert accuracy >= ACCURACY
    assert accuracy == pytest.approx(reported, abs=1e-3)


async def test_event_files_are_copied_from_the_claim(run: Run, tmp_path: Path) -> None:
    namespace = run.namespace
    kubeconfig = str(namespace.cluster.kubeconfig)
    choice = access.ConnectionOptions(kubeconfig=kubeconfig, namespace=namespace.name)
    async with cluster_backend.ClusterBackend(access.find(choice)) as cluster:
        copies = event_files.copies(cluster, "digits", tmp_path, stores.StoreOptions(), print)
        assert [job.state async for job in copies] == ["Succeeded"]
    assert {path.parent.name for path in tmp_path.rglob(files.EVENTS)} >= {"train"}
    assert not _has_begun(await asyncio.to_thread(_readers, namespace))


def test_ctrl_c_leaves_neither_a_file_nor_a_pod(run: Run, tmp_path: Path) -> None:
    namespace = run.namespace
    where = invocation.where(namespace)
    command = (*invocation.PROGRAM, "get", "model", "digits", *where)
    target = tmp_path / "model"
    with subprocess.Popen(
        (*command, "--to", str(target)), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "reading claim" in line
        # Its pod is created now, and takes a moment to start.
        waiting.until(lambda: _readers(namespace), "the pod that reads", when=_has_begun)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "Traceback" not in errors
    assert not list(target.rglob("*"))
    assert not _has_begun(_readers(namespace))


def _has_begun(pods: list[kubectl_namespaces.Object]) -> bool:
    """Whether a pod is not being deleted: those of earlier commands may be."""
    return any("deletionTimestamp" not in pod["metadata"] for pod in pods)


def _readers(namespace: kubectl_namespaces.KubectlNamespace) -> list[kubectl_namespaces.Object]:
    """The pods that read claims."""
    listing = namespace.kubectl("get", "pods", f"-l{claim.LABEL_READER}", "--output=json")
    items: list[kubectl_namespaces.Object] = json.loads(listing)["items"]
    return items


def _get_model(
    namespace: kubectl_namespaces.KubectlNamespace, shell: terminal.Shell, folder: Path
) -> Path:
    """Bring the model from the claim to this machine, as a user does."""
    shell.run(f"tfparallel get model digits --all --to {folder}")
    assert not _has_begun(_readers(namespace))
    assert (folder / "summary.json").exists()
    assert list(folder.glob("checkpoints/*/index.json"))
    assert list(folder.glob("logs/tensorboard/**/*tfevents*"))
    return folder / "model.keras"


def test_checkpoints_and_logs_are_in_the_claim(run: Run) -> None:
    listed_files = run.volume.list("digits")
    assert {"digits/summary.json", "digits/logs/train.jsonl"} <= {*listed_files}
    assert any(file.startswith("digits/checkpoints/") for file in listed_files)


def test_finished_job_that_is_applied_again_does_not_train_again(run: Run) -> None:
    namespace = run.namespace
    namespace.kubectl("delete", "tfpj", "digits")
    namespace.wait_gone("digits")
    namespace.kubectl("apply", f"--filename={operator.example('digits')}")
    again = namespace.wait_ended("digits")
    assert again["status"]["state"] == "Succeeded"
    assert again["metadata"]["uid"] != run.job["metadata"]["uid"]
    assert "evaluation" not in namespace.kubectl("logs", "digits-chief-0")


def test_a_deleted_job_leaves_nothing_but_the_users_objects(run: Run) -> None:
    namespace = run.namespace
    assert namespace.children("digits")
    namespace.kubectl("delete", "tfpj", "digits")
    namespace.wait_gone("digits")
    assert namespace.kubectl("get", "configmap", "digits", "--output=name")
