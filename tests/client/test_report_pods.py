"""Processes of pods in a cluster: those that exist, and those that only Events know."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from testing import report_runs
from tfparallel import models
from tfparallel.report import content, history, losses, periods, pods, run_records
from tfparallel.report.chronology import LoggedActivity
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.life import restart_policy

LOST = "digits-worker-1 vanished; all replicas run again (a disruption)"


def life(pod: str, node: str, scheduled: int, killed: int | None) -> Iterator[models.Event]:
    """The events of a pod with an init container."""
    message = f"Successfully assigned default/{pod} to {node}"
    yield report_runs.pod_event(scheduled, "Scheduled", pod, message)
    yield report_runs.pod_event(scheduled, "Started", pod, "Container started")
    yield report_runs.pod_event(scheduled + 1, "Started", pod, "Container started")
    if killed is not None:
        yield report_runs.pod_event(killed, "Killing", pod, "Stopping container tensorflow")


def replica(name: str, created: int, started: int | None) -> models.Replica:
    return models.Replica(
        name=name,
        pod=f"digits-{name}",
        attempt=2,
        phase="Running",
        node="node-9",
        created=report_runs.at(created),
        started=None if started is None else report_runs.at(started),
    )


JOB = report_runs.job(names.State.RUNNING, ended=None)
JOB = dataclasses.replace(JOB, status=JOB.status.model_copy(update={"attempt": 2}))
JOB_EVENTS = [
    report_runs.event(0, names.Reason.JOB_STARTED, "attempt 1 with 2 replicas"),
    report_runs.event(4, names.Reason.REPLICAS_RUNNING),
    report_runs.event(
        20.4, names.Reason.REPLICA_LOST, LOST, names.EventAction.RESTART_ALL, "digits-worker-1"
    ),
    report_runs.event(33, names.Reason.REPLICAS_RUNNING),
]
POD_EVENTS = [
    *life("digits-worker-0", "node-9", -50, -20),  # of an earlier job of the name
    *life("digits-worker-0", "node-0", 1, 21),
    *life("digits-worker-1", "node-1", 1, None),
    *life("digits-worker-0", "node-9", 30, None),
    *life("digits-worker-1", "node-9", 30, None),
]
REPLICAS = [replica("worker-0", 30, 31), replica("worker-1", 30, 31)]


def test_pods_of_an_earlier_attempt_are_known_from_events() -> None:
    runs = pods.find(JOB, REPLICAS, JOB_EVENTS, POD_EVENTS)
    seconds = [
        (
            run.replica,
            run.attempt,
            run.node,
            (run.started - report_runs.BEGIN).total_seconds(),
            None if run.ended is None else (run.ended - report_runs.BEGIN).total_seconds(),
            run.outcome,
        )
        for run in runs
    ]
    assert seconds == [
        ("worker-0", 1, "node-0", 2, 21, "deleted"),
        # Nobody stopped the one that was lost: its end is that of the job's attempt.
        ("worker-1", 1, "node-1", 2, 20.4, "ReplicaLost"),
        ("worker-0", 2, "node-9", 31, None, "runs"),
        ("worker-1", 2, "node-9", 31, None, "runs"),
    ]


def test_pods_that_are_all_gone_ended_with_the_job() -> None:
    job = dataclasses.replace(
        JOB, status=JOB.status.model_copy(update={"completion_time": report_runs.at(60)})
    )
    runs = pods.find(job, [], JOB_EVENTS, POD_EVENTS)
    ends = [run.ended for run in runs]
    assert ends == [report_runs.at(second) for second in (21, 20.4, 60, 60)]
    assert [run.attempt for run in runs] == [1, 1, 2, 2]


def test_a_replica_that_restarts_alone_ends_no_other_process() -> None:
    job = report_runs.job(names.State.RUNNING, ended=None)  # its attempt is the first
    events = [
        JOB_EVENTS[0],
        report_runs.event(
            20,
            names.Reason.REPLICA_FAILED,
            action=names.EventAction.RESTART_REPLICA,
            pod="digits-worker-1",
        ),
    ]
    lives = [
        *life("digits-worker-0", "node-0", 1, None),
        *life("digits-worker-1", "node-1", 1, None),
    ]
    runs = pods.find(job, [replica("worker-1", 21, None)], events, lives)
    assert [(run.replica, run.attempt, run.ended, run.outcome) for run in runs] == [
        ("worker-0", 1, report_runs.at(2), "deleted"),
        ("worker-1", 1, report_runs.at(20), "ReplicaFailed"),
    ]


def test_pods_that_wait_or_have_no_events_have_no_process() -> None:
    assert pods.find(JOB, [replica("worker-0", 30, None)], JOB_EVENTS, []) == []


@pytest.mark.parametrize("scope", restart_policy.Scope)
def test_events_of_the_operator_say_who_runs_again(scope: restart_policy.Scope) -> None:
    action = restart_policy.EVENT_ACTIONS[scope]
    event = report_runs.event(1, names.Reason.REPLICA_LOST, action=action, pod="digits-worker-1")
    assert losses.ends(event, "digits-worker-1")
    assert losses.ends(event, "digits-worker-0") == (scope is not restart_policy.Scope.REPLICA)
    assert losses.count_attempts([event]) == (scope is restart_policy.Scope.GANG)


def logged(run: run_records.RunRecords, lines: Sequence[str]) -> run_records.RunRecords:
    return dataclasses.replace(run, records=report_runs.parsed(lines))


def test_a_chief_that_saves_after_the_loss_has_its_cause() -> None:
    """A worker is lost at 20.4 s, and the chief trains and saves until the operator stops it."""
    run = run_records.RunRecords(job=JOB, source="", now=report_runs.at(60), events=JOB_EVENTS)
    first, second = periods.find(
        logged(run, [*report_runs.attempt(2, 0, 16), *report_runs.attempt(31, 160, 5, 2)])
    )
    assert first.records[-1].time > report_runs.at(20.4 + 2)
    assert first.cause is not None
    assert first.cause.message == LOST
    assert first.ended == first.records[-1].time
    assert (second.cause, second.attempt) == (None, 2)


@pytest.mark.parametrize(
    "reason", [names.Reason.STALL_DEADLINE_EXCEEDED, names.Reason.PENDING_DEADLINE_EXCEEDED]
)
def test_deadlines_that_restart_a_job_are_causes(reason: names.Reason) -> None:
    run = report_runs.with_a_loss()
    events = [
        dataclasses.replace(event, reason=reason.value)
        if event.reason == names.Reason.REPLICA_FAILED
        else event
        for event in run.events
    ]
    first, _ = history.attempts(dataclasses.replace(run, events=events))
    assert first.reason == reason


def without_events(**status: Any) -> run_records.RunRecords:
    run = report_runs.with_a_loss()
    job = report_runs.job(ended=30, **{"attempt": 2, **status})
    return dataclasses.replace(run, job=job, events=(), pods=())


@pytest.mark.parametrize(
    ("causes", "cause"),
    [
        ({"Disruption": 1}, "Disruption: by the status; the event is gone"),
        ({}, "no event tells why it ended"),
        ({"Disruption": 1, "Stall": 1}, "no event tells why it ended"),
    ],
)
def test_without_events_the_status_says_why_an_attempt_ended(
    causes: dict[str, int], cause: str
) -> None:
    first, _ = history.attempts(without_events(restart_causes=causes))
    assert first.cause == cause


def test_the_train_log_has_bars_for_pods_that_are_gone() -> None:
    run = without_events()
    bars = list(history.bars(run))
    assert [(bar.replica, bar.attempt, bar.begin) for bar in bars] == [
        ("worker-0", 1, 2),
        ("worker-0", 2, 16),
    ]
    assert history.without_pods(run) == [1, 2]
    second = [pod for pod in report_runs.with_a_loss().pods if pod.attempt == 2]
    partly = dataclasses.replace(run, pods=second)
    assert [bar.attempt for bar in history.bars(partly) if bar.replica == "worker-0"] == [2, 1]
    assert history.without_pods(partly) == [1]
    stayed = job_status.InPlaceStatus(attempt=2, pods_since=1)
    status = run.job.status.model_copy(update={"in_place": stayed})
    job = dataclasses.replace(run.job, status=status)
    assert history.without_pods(dataclasses.replace(partly, job=job)) == []


def test_what_nobody_recorded_is_not_called_waiting() -> None:
    """Neither train log nor Events: the job was there for 30 s, and nobody knows what it did."""
    run = dataclasses.replace(without_events(), records=(), missing_results="It is a script.")
    figures = content.make(run)
    assert figures.chronology.seconds == {LoggedActivity.UNKNOWN: pytest.approx(30)}
    started = dataclasses.replace(
        run,
        job=dataclasses.replace(
            run.job, status=run.job.status.model_copy(update={"start_time": report_runs.at(10)})
        ),
    )
    assert content.make(started).chronology.seconds == {
        LoggedActivity.UNKNOWN: pytest.approx(20),
        LoggedActivity.WAITING: pytest.approx(10),
    }


def test_a_script_trains_for_a_time_that_is_not_on_record() -> None:
    run = dataclasses.replace(
        report_runs.with_a_loss(), records=(), missing_results="It is a script."
    )
    figures = content.make(run)
    unknown = figures.chronology.seconds[LoggedActivity.UNKNOWN]
    # From the start of each pod to the loss, or to the end.
    assert unknown == pytest.approx((13 - 2) + (30 - 16))
    without_pods = content.make(dataclasses.replace(run, pods=()))
    unknown = without_pods.chronology.seconds[LoggedActivity.UNKNOWN]
    # From each ReplicasRunning.
    assert unknown == pytest.approx((13 - 2.1) + (30 - 16.1))
    assert [attempt.steps for attempt in figures.attempts] == ["not on record"] * 2


def test_a_job_that_restarts_now_is_not_training() -> None:
    run = report_runs.with_a_loss()
    job = report_runs.job(names.State.RESTARTING, ended=None)
    lost = dataclasses.replace(run, job=job, now=report_runs.at(15), events=run.events[:3])
    seconds = content.make(logged(lost, [*report_runs.attempt(2, 0, 5)])).chronology.seconds
    assert seconds[LoggedActivity.RESTART] == pytest.approx(15 - 13)


def test_a_failed_job_says_why_its_last_attempt_ended() -> None:
    failed = job_status.Condition(
        type=names.ConditionType.FAILED,
        status=job_status.Truth.TRUE,
        reason=names.Reason.BACKOFF_LIMIT_EXCEEDED,
        message="digits-worker-0 exited with code 1",
        last_transition_time=report_runs.at(30),
    )
    run = report_runs.with_a_loss()
    job = report_runs.job(names.State.FAILED, ended=30, conditions=(failed,))
    *_, last = history.attempts(dataclasses.replace(run, job=job))
    assert last.cause == "BackoffLimitExceeded: digits-worker-0 exited with code 1"


def test_a_job_whose_end_has_no_time_ended_with_its_last_condition() -> None:
    succeeded = job_status.Condition(
        type=names.ConditionType.SUCCEEDED,
        status=job_status.Truth.TRUE,
        reason="WorkersSucceeded",
        last_transition_time=report_runs.at(29),
    )
    job = report_runs.job(ended=None, conditions=(succeeded,))
    run = run_records.RunRecords(job=job, source="", now=report_runs.at(4000))
    assert run.end == report_runs.at(29)
