"""What a report reads from the folder of a local run."""

import json
import pathlib

from testing import report_runs
from tfparallel.backends.local import folders, record
from tfparallel.report import gather, history, log_tails
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.status import conditions


def leave_run(root: pathlib.Path, status: job_status.JobStatus) -> folders.Folders:
    """Leave the folder of a run without a train log."""
    layout = folders.Folders(root)
    layout.status.write_text(status.model_dump_json(by_alias=True, exclude_none=True))
    layout.manifest.write_text(json.dumps(report_runs.job().manifest))
    return layout


def add_event(layout: folders.Folders, seconds: float, reason: names.Reason) -> None:
    event = decision.JobEvent(decision.EventType.NORMAL, reason, "words")
    record.add_event(layout, event, report_runs.at(seconds))


def add_change(
    layout: folders.Folders, seconds: float, attempt: int, replica: str, code: int | None = None
) -> None:
    """Record that a process starts, or that it ends with a code."""
    change = record.PodChange(
        name=f"digits-{replica}",
        replica=replica,
        attempt=attempt,
        phase=observation.Phase.RUNNING if code is None else observation.Phase.FAILED,
        exit_code=code,
        reason="" if code is None else "Error",
        time=report_runs.at(seconds),
    )
    with layout.pod_changes.open("a", encoding="utf-8") as file:
        file.write(f"{change.model_dump_json()}\n")


async def test_a_process_that_was_killed_with_its_run_ended_before_the_next_run(
    tmp_path: pathlib.Path,
) -> None:
    running = job_status.JobStatus(state=names.State.RUNNING, attempt=2)
    layout = leave_run(tmp_path, running)
    add_event(layout, 0, names.Reason.JOB_STARTED)
    add_change(layout, 1, 1, "worker-0")
    add_event(layout, 2, names.Reason.REPLICAS_RUNNING)
    add_event(layout, 500, names.Reason.JOB_RESUMED)
    add_change(layout, 501, 2, "worker-0")
    add_change(layout, 530, 2, "worker-0", 9)
    run = await gather.gather_folder(tmp_path)
    assert run.is_local
    assert [(pod.started, pod.ended, pod.outcome) for pod in run.pods] == [
        (report_runs.at(1), report_runs.at(2), "its end is not on record"),
        (report_runs.at(501), report_runs.at(530), "Error, exit code 9"),
    ]
    first, second = history.attempts(run)
    assert (first.began, first.ended, second.began) == (1, 2, 501)


async def test_a_failed_run_shows_the_last_lines_of_the_replica_that_failed_first(
    tmp_path: pathlib.Path,
) -> None:
    message = "digits-worker-1 exited with code 65 (the user's module raised an error)"
    stamp = conditions.Stamp(report_runs.at(9), generation=1)
    failed = stamp.set(
        job_status.JobStatus(attempt=1), names.ConditionType.FAILED, True, "ReplicaFailed", message
    )
    layout = leave_run(tmp_path, failed)
    add_event(layout, 0, names.Reason.JOB_STARTED)
    for replica, code in (("worker-0", 75), ("worker-1", 65)):
        add_change(layout, 1, 1, replica)
        add_change(layout, 8, 1, replica, code)
        layout.logs.mkdir(exist_ok=True)
        lines = [f"{replica} {number}" for number in range(99)]
        layout.log(f"digits-{replica}").write_text("\n".join(lines))
    log = (await gather.gather_folder(tmp_path)).log
    assert log is not None
    assert (log.replica, log.source) == ("worker-1", str(layout.log("digits-worker-1")))
    first = 99 - log_tails.LINES
    assert list(log.lines) == [f"worker-1 {number}" for number in range(first, 99)]
    layout.log("digits-worker-1").unlink()
    log = (await gather.gather_folder(tmp_path)).log
    assert log is not None
    assert log.replica == "worker-0"


async def test_a_run_that_did_not_fail_shows_no_log(tmp_path: pathlib.Path) -> None:
    layout = leave_run(tmp_path, job_status.JobStatus(state=names.State.SUSPENDED, attempt=1))
    add_event(layout, 0, names.Reason.JOB_STARTED)
    layout.logs.mkdir()
    layout.log("digits-worker-0").write_text("a line\n")
    assert (await gather.gather_folder(tmp_path)).log is None
