"""What a fault cost, from records that are written here."""

import dataclasses
import datetime
import pathlib
from typing import Any

import pytest

from tfparallel import train_log
from tfparallel.backends.local import record
from tfparallel.rehearse import faults, recovery, rehearsal
from tfparallel_operator.core import decision, observation

BEGIN = datetime.datetime(2026, 11, 28, 10, tzinfo=datetime.UTC)
KILL = faults.Fault(faults.FaultKind.KILL, ("worker-1",), 6)


def at(seconds: float) -> datetime.datetime:
    return BEGIN + datetime.timedelta(seconds=seconds)


def change(seconds: float, replica: str, attempt: int, code: int | None = None) -> record.PodChange:
    phase = observation.Phase.RUNNING if code is None else observation.Phase.FAILED
    return record.PodChange(
        time=at(seconds),
        name=f"job-{replica}",
        replica=replica,
        attempt=attempt,
        phase=phase,
        exit_code=code,
    )


def saved(seconds: float, step: int) -> train_log.Record:
    return train_log.Record(
        time=at(seconds),
        event="checkpoint",
        step=step,
        metrics={},
        input_wait=None,
        fields={"seconds": 0.5, "writeSeconds": 2.0},
    )


def trial(**fields: Any) -> recovery.TrialRecords:
    """A run of ten steps of a second, that saves after each third."""
    return recovery.TrialRecords(
        **{
            "results": pathlib.Path("results"),
            "logs": pathlib.Path("logs"),
            "problem": "",
            "steps": [recovery.StepEnd(at(number), number) for number in range(1, 11)],
            "log_records": [saved(number, number) for number in (3, 6, 9, 10)],
            "events": [],
            "pod_changes": [change(0, "worker-0", 1), change(0, "worker-1", 1)],
            "injections": [],
            **fields,
        }
    )


def disturbed() -> recovery.TrialRecords:
    """Worker 1 is killed 6.5 s after the begin; the job resumes with step 4 after 15 s."""
    before = [recovery.StepEnd(at(number), number) for number in range(1, 7)]
    after = [recovery.StepEnd(at(11 + number), number) for number in range(4, 11)]
    restart = record.Event(
        time=at(7), type=decision.EventType.WARNING, reason="JobRestarting", message="again"
    )
    return trial(
        steps=before + after,
        events=[restart],
        pod_changes=[
            *trial().pod_changes,
            change(6.75, "worker-1", 1, 137),
            change(7.5, "worker-0", 1, 75),
            change(8, "worker-0", 2),
            change(8.5, "worker-1", 2),
        ],
        injections=[faults.Injection(KILL, at(6.5), 6)],
    )


def test_each_phase_counts_from_the_fault() -> None:
    [recovered] = recovery.find_recoveries(disturbed())
    assert recovered == recovery.Recovery(
        fault=KILL,
        step=6,
        noticed=0.25,
        restarted=2.0,
        resumed=8.5,
        advanced=11.5,
        lost_steps=3,
    )


@pytest.mark.parametrize(
    "fault",
    [
        faults.Fault(faults.FaultKind.DISK_FULL, (), 6),
        faults.Fault(faults.FaultKind.CUT, ("worker-1", "worker-2"), 6),
    ],
    ids=str,
)
def test_a_full_disk_and_a_cut_end_with_the_first_process_that_starts(
    fault: faults.Fault,
) -> None:
    injections = [faults.Injection(fault, at(6.5), 6)]
    [recovered] = recovery.find_recoveries(dataclasses.replace(disturbed(), injections=injections))
    assert (recovered.noticed, recovered.restarted, recovered.resumed) == (0.25, 1.5, 8.5)


def test_a_replica_whose_loss_stops_nobody_loses_no_step() -> None:
    """Such as a worker of parameter servers: steps go on meanwhile."""
    changes = [*trial().pod_changes, change(6.75, "worker-1", 1, 137), change(8.2, "worker-1", 1)]
    injection = faults.Injection(KILL, at(6.5), 6)
    [recovered] = recovery.find_recoveries(trial(pod_changes=changes, injections=[injection]))
    assert (recovered.restarted, recovered.resumed, recovered.advanced, recovered.lost_steps) == (
        1.7,
        2.5,
        2.5,
        0,
    )


def test_a_job_that_does_not_come_back_has_no_later_phase() -> None:
    whole = disturbed()
    run = trial(
        steps=whole.steps[:6], pod_changes=whole.pod_changes[:3], injections=whole.injections
    )
    [recovered] = recovery.find_recoveries(run)
    assert recovered == recovery.Recovery(KILL, 6, 0.25, None, None, None, None)


def test_a_fault_that_nobody_notices_has_no_phase() -> None:
    [recovered] = recovery.find_recoveries(trial(injections=[faults.Injection(KILL, at(9.5), 9)]))
    assert recovered == recovery.Recovery(KILL, 9, None, None, None, None, None)


def test_the_timeline_is_in_the_order_of_time() -> None:
    listed = recovery.build_timeline(disturbed())
    assert [(entry.seconds, entry.text) for entry in listed if entry.seconds > 0] == [
        (5.5, "kill worker-1@6, after step 6"),
        (5.75, "worker-1 ends with exit code 137"),
        (6.0, "JobRestarting: again"),
        (6.5, "worker-0 ends with exit code 75"),
        (7.0, "worker-0 starts"),
        (7.5, "worker-1 starts"),
    ]
    assert recovery.build_timeline(trial(steps=[])) == ()


def test_a_restart_is_no_step() -> None:
    assert disturbed().step_seconds == 1.0
    assert (trial().seconds, trial(steps=[]).seconds) == (9.0, None)
    assert trial(steps=[]).step_seconds is None


def test_a_prediction_takes_what_was_measured() -> None:
    predicted = rehearsal.predict(trial(), disturbed(), 1.0)
    assert predicted is not None
    costs = predicted.costs
    assert (costs.pause, costs.write, costs.restart) == (0.5, 2.0, 8.5)
    assert predicted.interval_steps == 3
    assert 0 < predicted.goodput < predicted.best_goodput < 1
    assert predicted.best_interval_steps == 60  # about the root of 2 * 0.5 s * 3600 s


@pytest.mark.parametrize(
    ("undisturbed", "with_faults"), [(trial(log_records=[]), disturbed()), (trial(), trial())]
)
def test_without_a_checkpoint_or_a_restart_there_is_no_prediction(
    undisturbed: recovery.TrialRecords, with_faults: recovery.TrialRecords
) -> None:
    assert rehearsal.predict(undisturbed, with_faults, 1.0) is None
