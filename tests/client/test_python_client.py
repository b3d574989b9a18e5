"""The client's own part, on a backend in memory whose job changes when a test says so."""

import asyncio
import contextlib
import dataclasses
import datetime
import gc
import math
import pathlib
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Self

import pytest

import tfparallel
from testing import invocation
from tfparallel import backend, errors, models
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core.status import conditions

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
MANIFEST: Mapping[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": "digits"},
    "spec": {"tfReplicaSpecs": {"Chief": {"template": {"spec": {"containers": []}}}}},
}


def job(state: names.ConditionType | None = None, step: int | None = None) -> models.Job:
    status = job_status.JobStatus()
    if step is not None:
        status = status.model_copy(update={"progress": job_status.ProgressStatus(step=step)})
    if state is not None:
        status = conditions.Stamp(NOW, 1).set(status, state, True, "Why", "because")
    return models.Job("digits", "default", "uid", NOW, status, MANIFEST)


RUNNING = names.ConditionType.RUNNING
SUCCEEDED = job(names.ConditionType.SUCCEEDED, step=3)
FAILED = job(names.ConditionType.FAILED)


class ScriptedBackend:
    """A watch shows the versions of the script; then it waits, or says that the job is deleted."""

    def __init__(self, *versions: models.Job, deleted: bool = False) -> None:
        self._versions = versions
        self._deleted = deleted
        self.is_connected = False
        self.open_streams = 0
        self.thread: threading.Thread | None = None

    def connect(self) -> backend.Backend:
        return self

    async def __aenter__(self) -> Self:
        self.is_connected = True
        self.thread = threading.current_thread()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_connected = False

    async def create_job(
        self, document: Mapping[str, Any], folder: pathlib.Path, *, is_temporary: bool = False
    ) -> models.Job:
        raise load.SpecError("refused")

    async def list_jobs(self, *, everywhere: bool = False) -> Sequence[models.Job]:
        await asyncio.sleep(3600)
        return ()

    async def get_job(self, name: str) -> models.Job:
        return self._versions[-1]

    async def watch_job(self, name: str) -> AsyncGenerator[models.Job, None]:
        with self._counted():
            for version in self._versions:
                yield version
            if not self._deleted:
                await asyncio.Event().wait()

    @contextlib.contextmanager
    def _counted(self) -> Any:
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1

    async def list_claims(self, job: models.Job) -> Sequence[models.Claim]:
        return ()

    async def list_operators(self) -> Sequence[models.Operator] | None:
        return None

    async def list_replicas(self, job: models.Job) -> Sequence[models.Replica]:
        return [
            models.Replica(name, f"digits-{name}", 1, "Running") for name in ("chief-0", "worker-0")
        ]

    async def list_events(self, job: models.Job) -> Sequence[models.Event]:
        return ()

    async def read_logs(
        self, replica: models.Replica, job: models.Job, *, follow: bool, tail: int | None
    ) -> AsyncIterator[str]:
        with self._counted():
            for number in range(5000):
                yield f"[{replica.name}] line {number}"

    async def suspend_job(self, name: str, *, suspend: bool) -> None: ...

    async def scale_job(self, name: str, workers: int) -> None: ...

    async def delete_job(self, name: str, *, delete_results: bool = False) -> None: ...


def test_waiting_ends_in_the_state_and_calls_back_at_each_change() -> None:
    versions = (job(), job(RUNNING), SUCCEEDED)
    states: list[str] = []
    with tfparallel.TrainerClient(ScriptedBackend(*versions)) as client:
        ended = client.wait_for_job_status(
            "digits", callbacks=[lambda version: states.append(version.state)]
        )
        assert ended is SUCCEEDED
        assert states == ["Pending", "Running", "Succeeded"]
        running = client.wait_for_job_status("digits", {"Running", "Failed"}, timeout=60)
        assert running.state == "Running"


def test_waiting_closes_the_watch() -> None:
    scripted_backend = ScriptedBackend(job(), job(RUNNING))
    with tfparallel.TrainerClient(scripted_backend) as client:
        client.wait_for_job_status("digits", "Running")
        assert scripted_backend.open_streams == 0


@pytest.mark.parametrize(
    ("scripted_backend", "status", "kind", "sentence"),
    [
        (ScriptedBackend(FAILED), "Succeeded", errors.Failure, "is Failed, and cannot become"),
        (ScriptedBackend(FAILED), "Succeeded", errors.Failure, "Why: because"),
        (ScriptedBackend(SUCCEEDED), "Running", errors.Failure, "cannot become Running"),
        (ScriptedBackend(job(), deleted=True), "Running", errors.Failure, "was deleted"),
        (ScriptedBackend(job(RUNNING)), "Succeeded", TimeoutError, "is Running after 0.01 s, not"),
        (ScriptedBackend(job()), "Suceeded", load.SpecError, "did you mean 'Succeeded'?"),
        (ScriptedBackend(job()), (), load.SpecError, "received no state"),
    ],
)
def test_waiting_in_vain_is_reported(
    scripted_backend: ScriptedBackend, status: Any, kind: type[Exception], sentence: str
) -> None:
    with (
        tfparallel.TrainerClient(scripted_backend) as client,
        pytest.raises(kind, match=sentence),
    ):
        client.wait_for_job_status("digits", status, timeout=0.01)


def test_progress_is_a_stream_of_reports() -> None:
    versions = (job(), job(step=1), job(RUNNING, step=1), job(step=2), SUCCEEDED)
    with tfparallel.TrainerClient(ScriptedBackend(*versions)) as client:
        steps = [progress.step for progress in client.watch_progress("digits")]
    assert steps == [1, 2, 3]


def test_a_loss_that_is_no_number_is_reported_once() -> None:
    progress = job_status.ProgressStatus(step=1, metrics={"loss": "NaN"})
    status = job_status.JobStatus(progress=progress)
    versions = [
        dataclasses.replace(job(RUNNING), status=status.model_copy(deep=True)) for _ in range(3)
    ]
    scripted_backend = ScriptedBackend(*versions, deleted=True)
    with tfparallel.TrainerClient(scripted_backend) as client:
        [shown] = list(client.watch_progress("digits"))
    assert math.isnan(shown.metrics["loss"])


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (job(RUNNING), "is Running, and its model is written at the end: wait with wait_for_job"),
        (FAILED, r"failed, and has no model: diagnose_job\('digits'\) says why"),
        (SUCCEEDED, "ScriptedBackend does not know where jobs keep their results"),
    ],
)
def test_a_job_without_a_model_says_how_to_go_on(version: models.Job, sentence: str) -> None:
    with (
        tfparallel.TrainerClient(ScriptedBackend(version)) as client,
        pytest.raises(errors.Failure, match=sentence),
    ):
        client.get_model("digits")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"source": "model.py", "func": print},
        {"source": "model.py", "func_args": {"a": 1}},
        {"source": "model.py", "packages": ["pandas"]},
    ],
)
def test_a_job_is_of_one_source_or_of_a_function(arguments: Any) -> None:
    with (
        tfparallel.TrainerClient(ScriptedBackend(SUCCEEDED)) as client,
        pytest.raises(load.SpecError, match="train: give either a source, or func, which"),
    ):
        client.train(**arguments)


def test_a_model_is_no_function() -> None:
    class CallableModel:
        def __call__(self) -> None: ...

    with (
        tfparallel.TrainerClient(ScriptedBackend(SUCCEEDED)) as client,
        pytest.raises(
            load.SpecError, match="func: received CallableModel, which is not a function"
        ),
    ):
        client.train(CallableModel())


def test_logs_are_those_of_the_coordinator_of_a_replica_or_of_all() -> None:
    with tfparallel.TrainerClient(ScriptedBackend(SUCCEEDED)) as client:

        def first(replica: str | None) -> list[str]:
            lines = list(client.get_job_logs("digits", replica))
            return [line for line in lines if line.endswith("line 0")]

        assert first(None) == ["[chief-0] line 0"]
        assert first("worker-0") == ["[worker-0] line 0"]
        assert first("all") == ["[chief-0] line 0", "[worker-0] line 0"]
        with pytest.raises(load.SpecError, match="no replica 'worker-1': did you mean 'worker-0'"):
            first("worker-1")


def test_a_replica_that_went_with_the_end_of_its_job_has_no_log() -> None:
    role = MANIFEST["spec"]["tfReplicaSpecs"]["Chief"]
    roles = {"Chief": role, "Worker": {**role, "replicas": 2}}
    manifest = {**MANIFEST, "spec": {"tfReplicaSpecs": roles}}
    finished = dataclasses.replace(SUCCEEDED, manifest=manifest)
    with (
        tfparallel.TrainerClient(ScriptedBackend(finished)) as client,
        pytest.raises(load.SpecError, match=r"worker-1 of digits has no log: its pod is gone"),
    ):
        list(client.get_job_logs("digits", "worker-1"))


class WithoutReplicas(ScriptedBackend):
    """A job whose pods do not exist yet."""

    async def list_replicas(self, job: models.Job) -> Sequence[models.Replica]:
        return []


def test_a_job_without_replicas_says_how_to_wait_for_them() -> None:
    with (
        tfparallel.TrainerClient(WithoutReplicas(job(RUNNING))) as client,
        pytest.raises(load.SpecError, match=r"digits has no replicas yet\. .*-f waits"),
    ):
        list(client.get_job_logs("digits"))


async def test_the_client_works_where_a_loop_runs_as_in_a_notebook() -> None:
    scripted_backend = ScriptedBackend(job(RUNNING), SUCCEEDED)
    with tfparallel.TrainerClient(scripted_backend) as client:
        assert client.get_job("digits") is SUCCEEDED
        assert scripted_backend.is_connected
        assert scripted_backend.thread is not threading.current_thread()
        assert [progress.step for progress in client.watch_progress("digits")] == [3]
        assert len(list(client.get_job_logs("digits"))) == 5000
        with pytest.raises(load.SpecError, match="refused"):
            client.train(_document())
    assert not scripted_backend.is_connected
    with pytest.raises(RuntimeError, match="this client is closed"):
        client.get_job("digits")


def _document() -> dict[str, Any]:
    return {
        "apiVersion": "tfparallel.dev/v1alpha1",
        "kind": "TFParallelJob",
        "metadata": {"name": "digits"},
        "spec": {"trainer": {"epochs": 1}, "tfReplicaSpecs": {"Worker": {}}},
    }


def test_callbacks_run_in_the_callers_thread_and_may_use_the_client() -> None:
    calls = []

    def callback(version: models.Job) -> None:
        calls.append((threading.current_thread(), version.state, client.get_job("digits").state))

    with tfparallel.TrainerClient(ScriptedBackend(job(RUNNING), SUCCEEDED)) as client:
        client.wait_for_job_status("digits", timeout=60, callbacks=[callback])
    here = threading.current_thread()
    assert calls == [(here, "Running", "Succeeded"), (here, "Succeeded", "Succeeded")]


def test_a_stream_that_is_left_is_closed() -> None:
    scripted_backend = ScriptedBackend(job(RUNNING))
    with tfparallel.TrainerClient(scripted_backend) as client:
        lines = client.get_job_logs("digits")
        assert next(lines) == "[chief-0] line 0"
        assert scripted_backend.open_streams == 1
        lines.close()  # type: ignore[attr-defined]
    assert scripted_backend.open_streams == 0


def test_an_error_in_a_stream_reaches_the_caller() -> None:
    scripted_backend = ScriptedBackend(FAILED)
    with (
        tfparallel.TrainerClient(scripted_backend) as client,
        pytest.raises(errors.Failure, match="is Failed"),
    ):
        client.wait_for_job_status("digits")
    assert scripted_backend.open_streams == 0


def test_a_client_that_is_forgotten_closes_its_connection_and_its_thread() -> None:
    scripted_backend = ScriptedBackend(SUCCEEDED)
    client = tfparallel.TrainerClient(scripted_backend)
    thread = scripted_backend.thread
    assert thread is not None
    del client
    gc.collect()
    thread.join()
    assert not scripted_backend.is_connected


def test_a_place_that_cannot_be_reached_leaves_no_thread(tmp_path: pathlib.Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(errors.Failure):
        tfparallel.TrainerClient(tfparallel.Cluster(kubeconfig=str(tmp_path / "none")))
    assert not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]


def test_every_name_is_exported_and_no_other() -> None:
    assert {getattr(tfparallel, name).__name__ for name in tfparallel.__all__} == set(
        tfparallel.__all__
    )
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = tfparallel.Trainer


@pytest.mark.usefixtures("processes")
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, tfparallel; print(len({n.partition('.')[0] for n in sys.modules} & {%s}))"
    heavy = "'aiohttp', 'pydantic', 'yaml', 'kubernetes', 'matplotlib', 'rich', 'tensorflow'"
    done = invocation.execute(sys.executable, "-c", code % heavy, check=True)
    assert done.stdout == "0\n"


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        tfparallel.Local().folder = "x"  # type: ignore[misc]
