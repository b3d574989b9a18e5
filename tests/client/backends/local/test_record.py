"""What a run leaves for readers in other processes: locks, events and pods."""

import fcntl
import os
import pathlib

import pytest

from testing.operator import local_jobs as jobs
from tfparallel.backends.local import folders, locks, record
from tfparallel_operator.core import observation


def test_a_lock_is_seen_while_its_file_is_open(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lock"
    assert not locks.is_locked(path)
    with path.open("a") as first:
        assert locks.acquire(first)
        assert locks.is_locked(path)
        with path.open("a") as second:
            assert not locks.acquire(second)
        assert locks.is_locked(path)
    assert not locks.is_locked(path)


def test_a_reader_does_not_keep_a_run_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's lock is shared for a moment: here until the run has tried once."""
    path = tmp_path / "lock"
    flock = fcntl.flock
    with path.open("a") as runner, path.open("a") as reader:
        flock(reader, fcntl.LOCK_SH)

        def tried(file: object, operation: int) -> None:
            try:
                flock(runner, operation)
            finally:
                flock(reader, fcntl.LOCK_UN)

        monkeypatch.setattr(fcntl, "flock", tried)
        assert locks.acquire(runner)


@pytest.mark.usefixtures("processes")
async def test_a_run_records_its_events_and_pods(tmp_path: pathlib.Path) -> None:
    document = jobs.job({"Worker": jobs.shell("exit 3")}, runPolicy={"backoffLimit": 0})
    outcome, recorder = await jobs.finish(tmp_path, document)
    layout = outcome.layout
    events = record.read_events(layout)
    assert [(e.type, e.reason, e.message) for e in events] == [
        (e.type, e.reason, e.message) for e in recorder.events
    ]
    pods = {pod.name: pod for pod in record.read_pods(layout)}
    lost = pods["job-worker-0"]
    assert (lost.replica, lost.attempt, lost.phase) == ("worker-0", 1, observation.Phase.FAILED)
    assert (lost.exit_code, lost.reason) == (3, "Error")
    assert layout.lock.read_text() == ""


@pytest.mark.usefixtures("processes")
async def test_a_run_names_its_process(tmp_path: pathlib.Path) -> None:
    layout = folders.Folders(tmp_path / "out")
    document = jobs.job({"Worker": jobs.shell(f"cat {layout.lock} > seen")})
    await jobs.finish(tmp_path, document)
    assert (tmp_path / "seen").read_text() == f"{os.getpid()}\n"


def test_a_folder_without_a_run_has_neither(tmp_path: pathlib.Path) -> None:
    layout = folders.Folders(tmp_path)
    assert (record.read_events(layout), record.read_pods(layout)) == ((), ())
    layout.events.write_text('{"time": "2026-01-01T0')  # which is being written
    assert record.read_events(layout) == ()
