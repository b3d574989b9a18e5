"""Two clusters with a job of one namespace and name: a live owner keeps its directory."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from testing import buckets, paths, waiting
from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import owner
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.storage import directory
from tfparallel_trainer.storage import folder as folders

NEVER = 1e6
"""Seconds that no test waits."""


@pytest.fixture(params=["folder", "bucket"])
def output(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> directory.Directory:
    monkeypatch.setattr(owner, "INTERVAL_SECONDS", 0.01)
    set_limits(monkeypatch)
    if request.param == "folder":
        return folders.Folder(tmp_path / "checkpoints")
    s3: buckets.Bucket = request.getfixturevalue("s3")
    return s3.checkpoints


def set_limits(
    monkeypatch: pytest.MonkeyPatch, silence: float = NEVER, patience: float = NEVER
) -> None:
    monkeypatch.setattr(owner, "SILENCE_SECONDS", silence)
    monkeypatch.setattr(owner, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(owner, "_LOOKS", silence / 0.01)


def heartbeat(storage: directory.Directory) -> owner.Heartbeat:
    return owner.Heartbeat.model_validate_json(storage.read(owner.HEARTBEAT))


def wait_for_heartbeat(storage: directory.Directory, process: str) -> None:
    waiting.until(
        lambda: storage.has(owner.HEARTBEAT) and heartbeat(storage).process == process,
        "a heartbeat",
    )


def stand_still(storage: directory.Directory, process: str) -> None:
    """Leave what a process leaves that is killed."""
    sign = owner.Heartbeat(process=process, number=7)
    storage.write(owner.HEARTBEAT, sign.model_dump_json().encode())


def test_a_live_owner_of_another_job_is_refused_and_goes_on(
    output: directory.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = owner.take(output, "uid-1", 3, "team")
    with owner.living(output, first):
        wait_for_heartbeat(output, first.process)
        set_limits(monkeypatch, patience=0.05)
        with pytest.raises(
            errors.BadConfigurationError,
            match=r"belongs to attempt 3 of job uid-1, which is still running.* uri or claim of y",
        ):
            owner.take(output, "uid-2", 1, "team")
        owner.check(output, first)


def test_an_owner_whose_heartbeat_stands_still_is_replaced(
    output: directory.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = owner.take(output, "uid-1", 1)
    stand_still(output, first.process)
    set_limits(monkeypatch, silence=0.05)
    messages: list[str] = []
    second = owner.take(output, "uid-2", 1, say=messages.append)
    assert owner.find(output) == second
    assert len(messages) == 1
    assert "for the end of attempt 1 of job uid-1" in messages[0]
    with pytest.raises(errors.PreemptedError, match="attempt 1 of job uid-2 has taken"):
        owner.check(output, first)


@pytest.mark.parametrize("job", ["uid-1", "uid-2"])
def test_who_has_ended_is_followed_at_once(output: directory.Directory, job: str) -> None:
    first = owner.take(output, "uid-1", 1)
    with owner.living(output, first):
        pass
    assert heartbeat(output).ended
    assert owner.take(output, job, 2).attempt == 2


def test_an_error_ends_a_run_as_well(output: directory.Directory) -> None:
    first = owner.take(output, "uid-1", 1)
    with contextlib.suppress(errors.UserCodeError), owner.living(output, first):
        raise errors.UserCodeError("the model is wrong")
    owner.take(output, "uid-2", 1)


def test_a_job_takes_over_from_its_own_live_attempt_at_once(output: directory.Directory) -> None:
    first = owner.take(output, "uid-1", 1)
    with owner.living(output, first):
        wait_for_heartbeat(output, first.process)
        second = owner.take(output, "uid-1", 2)
        with owner.living(output, second):
            wait_for_heartbeat(output, second.process)
    assert heartbeat(output).process == second.process


def test_who_was_replaced_does_not_write_that_it_has_ended(output: directory.Directory) -> None:
    first = owner.take(output, "uid-1", 1)
    with owner.living(output, first):
        wait_for_heartbeat(output, first.process)
        second = owner.take(output, "uid-1", 2)
    stand_still(output, second.process)
    with owner.living(output, first):
        pass
    assert heartbeat(output) == owner.Heartbeat(process=second.process, number=7)


def test_the_end_of_a_deleted_job_is_waited_for(output: directory.Directory) -> None:
    first, announced = owner.take(output, "uid-1", 1), threading.Event()
    owners: list[owner.Owner] = []

    def take() -> None:
        owners.append(owner.take(output, "uid-2", 1, say=lambda _: announced.set()))

    with owner.living(output, first):
        wait_for_heartbeat(output, first.process)
        second = threading.Thread(target=take)
        second.start()
        assert announced.wait(60)
        owner.check(output, first)
        assert not owners
    second.join(60)
    assert owner.find(output) == owners[0]


def test_an_owner_of_a_version_without_heartbeats_is_replaced_at_once(
    output: directory.Directory,
) -> None:
    owner.take(output, "uid-1", 1)
    assert owner.take(output, "uid-2", 1).job == "uid-2"


def test_the_heartbeat_of_another_process_is_none_of_the_owner(
    output: directory.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner was killed before its first one."""
    first = owner.take(output, "uid-1", 1)
    with owner.living(output, first):
        pass
    owner.take(output, "uid-2", 1)
    messages: list[str] = []
    set_limits(monkeypatch, silence=0.05)
    owner.take(output, "uid-3", 1, say=messages.append)
    assert "for the end of attempt 1 of job uid-2" in messages[0]


IMPATIENT = """
from tfparallel_trainer.checkpoint import owner
owner.INTERVAL_SECONDS = owner.PATIENCE_SECONDS = 0.1
owner._LOOKS = 300
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "engine",
    [{"strategy": "Mirrored"}, {"strategy": "ModelSplit", "mesh": {"tensor": 2}, "devices": 2}],
    ids=["mesh", "split"],
)
def test_the_second_of_two_clusters_is_refused_until_the_first_is_asked_to_end(
    runs: trainings.Runs, s3: buckets.Bucket, tmp_path: pathlib.Path, engine: dict[str, Any]
) -> None:
    model = (paths.TRAINER_MODELS / "mlp.py").read_text()
    (tmp_path / "model.py").write_text(model + IMPATIENT)

    def job(uid: str, steps: int) -> dict[str, Any]:
        names = {environment.JOB_UID: uid, environment.JOB_NAMESPACE: "team"}
        return {
            **engine,
            "module": "model.py",
            "source": tmp_path,
            "steps": steps,
            "checkpoint": s3.checkpoint(everySteps=1000),
            "variables": {**s3.variables, **names},
        }

    with runs.start(**job("uid-1", launch.ENDLESS), folder="first") as group:
        group.wait_for_output(0, "] step ")
        second = runs.end(**job("uid-2", 1), folder="second")
        assert second.chief.code == exits.Exit.BAD_CONFIGURATION, second.chief
        assert "attempt 1 of job uid-1, which is still running" in second.chief.errors
        group.processes[0].send_signal(signal.SIGTERM)
        (first,) = group.wait()
    assert first.code == exits.Exit.PREEMPTED, first
    third = runs.finish(**job("uid-3", 1), folder="third")
    assert "waiting up to" not in third.chief.output
    assert "resuming after step " in third.chief.output


ENDS_AT_ONCE = """
import pathlib, sys, time
from tfparallel_trainer.checkpoint import owner
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.storage import folder
output = folder.Folder(pathlib.Path(sys.argv[1]))
with owner.living(output, owner.take(output, "uid-1", 1)):
    while not output.has(owner.HEARTBEAT):
        time.sleep(0.01)
    termination.end(79)
"""


@pytest.mark.usefixtures("processes")
def test_a_process_that_ends_at_once_says_that_it_has_ended(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-c", ENDS_AT_ONCE, str(tmp_path)]
    assert subprocess.run(command, check=False, cwd=paths.ROOT).returncode == 79
    storage = folders.Folder(tmp_path)
    assert heartbeat(storage).ended
    messages: list[str] = []
    assert owner.take(storage, "uid-2", 1, say=messages.append).job == "uid-2"
    assert messages == [], "nobody waits"
