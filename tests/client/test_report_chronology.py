"""What a run did when: each second belongs to one activity."""

import dataclasses
import itertools

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing import report_histories, report_runs
from tfparallel.report import attribution, chronology, content, history, periods, run_records
from tfparallel.report.chronology import LoggedActivity
from tfparallel_operator.api import names
from tfparallel_trainer.contract import outputs

SECONDS = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def intervals(draw: st.DrawFn) -> list[chronology.Interval]:
    activity = st.sampled_from(LoggedActivity)
    return [
        chronology.Interval(draw(activity), *sorted((draw(SECONDS), draw(SECONDS))))
        for _ in range(draw(st.integers(0, 8)))
    ]


@given(intervals(), st.floats(0, 1e6))
def test_all_seconds_belong_to_one_activity(drawn: list[chronology.Interval], whole: float) -> None:
    divided = chronology.attribute(whole, drawn)
    assert all(seconds > 0 for seconds in divided.seconds.values())
    assert sum(divided.seconds.values()) == pytest.approx(whole)
    assert divided.length == pytest.approx(whole)
    for interval, other in itertools.pairwise(divided.intervals):
        assert interval.end == other.begin
        assert interval.activity is not other.activity


@given(intervals(), st.floats(1, 1e6), st.floats(0, 1))
def test_a_moment_belongs_to_the_first_activity_that_covers_it(
    drawn: list[chronology.Interval], whole: float, share: float
) -> None:
    divided = chronology.attribute(whole, drawn)
    for interval in divided.intervals:
        middle = interval.begin + share * (interval.end - interval.begin)
        if interval.begin < middle < interval.end:
            covering = {
                interval.activity for interval in drawn if interval.begin <= middle < interval.end
            }
            expected = next((activity for activity in LoggedActivity if activity in covering), None)
            assert interval.activity is (expected or LoggedActivity.WAITING)


def test_a_run_that_lost_a_worker() -> None:
    run = report_runs.with_a_loss()
    figures = content.make(run)
    activity = LoggedActivity
    assert figures.chronology.seconds == pytest.approx(
        {
            activity.CHECKPOINT: 4 * 0.5,
            activity.LOST: 13 - 11.5,  # from the checkpoint after 40 steps to the loss
            activity.EVALUATION: 27 - 26,
            # Six reports follow another after a second, and three a checkpoint after half of one.
            activity.INPUT: 0.2 * (6 * 1 + 3 * 0.5),
            activity.TRAINING: 0.8 * (6 * 1 + 3 * 0.5),
            activity.START: 7 - 2,
            activity.RESTART: 21 - 13,
            activity.END: 30 - 27,
            activity.WAITING: 2,
        }
    )
    assert sum(figures.chronology.seconds.values()) == pytest.approx(30)
    first, second = figures.attempts
    assert (first.steps, second.steps) == ("0 to 50", "40 to 90")
    assert first.cause.startswith("ReplicaFailed: digits-worker-1 exited with code 137")
    assert (first.start_seconds, second.start_seconds) == (5, 5)
    assert first.lost == pytest.approx(13 - 11.5 + 3 + 5)
    assert (second.cause, second.lost) == ("Succeeded", None)


@pytest.mark.parametrize("reason", [names.Reason.JOB_SUSPENDED, names.Reason.JOB_RESUMED])
def test_a_job_that_somebody_stops_and_resumes_waits(reason: names.Reason) -> None:
    run = report_runs.with_a_loss()
    paused = [
        dataclasses.replace(event, reason=reason.value)
        if event.reason == names.Reason.REPLICA_FAILED
        else event
        for event in run.events
    ]
    seconds = content.make(dataclasses.replace(run, events=paused)).chronology.seconds
    # Of a local run that Ctrl-C ended no event tells the end, so its last record counts.
    waited = 3 if reason is names.Reason.JOB_SUSPENDED else 16 - 12
    assert seconds[LoggedActivity.WAITING] == pytest.approx(2 + waited)
    assert seconds[LoggedActivity.START] == pytest.approx(5 + 5)
    assert LoggedActivity.RESTART not in seconds


def test_a_run_that_is_resumed_for_more_epochs_has_lost_nothing() -> None:
    run = report_runs.with_a_loss()
    lines = [
        *report_runs.attempt(2, 0, 4),
        report_runs.line(11.6, outputs.TrainEvent.DONE, 40),
        *report_runs.attempt(16, 40, 5, 2),
        report_runs.line(28, outputs.TrainEvent.DONE, 90),
    ]
    events = [
        dataclasses.replace(event, reason=names.Reason.JOB_RESUMED.value, message="attempt 2")
        if event.reason == names.Reason.REPLICA_FAILED
        else event
        for event in run.events
    ]
    resumed = dataclasses.replace(run, records=report_runs.parsed(lines), events=events)
    figures = content.make(resumed)
    assert [(attempt.cause, attempt.lost) for attempt in figures.attempts] == [
        ("Succeeded", None)
    ] * 2
    seconds = figures.chronology.seconds
    assert not {LoggedActivity.LOST, LoggedActivity.RESTART} & {*seconds}
    assert seconds[LoggedActivity.WAITING] == pytest.approx(2 + 16 - 13.5)  # its pod's end
    assert seconds[LoggedActivity.START] == pytest.approx(5 + 5)


def test_a_worker_that_comes_back_alone_ends_no_period() -> None:
    run = report_runs.with_a_loss()
    lines = [*report_runs.attempt(2, 0, 20)]
    events = [
        dataclasses.replace(event, action=names.EventAction.RESTART_REPLICA.value)
        for event in run.events
    ]
    pods = [pod for pod in run.pods if pod.replica == "worker-1"]
    trained = report_runs.parsed(lines)
    alone = dataclasses.replace(run, records=trained, events=events, pods=pods)
    [period] = periods.find(alone)
    assert (period.last_step, period.cause) == (200, None)


def test_a_job_before_its_first_step_starts_and_restarts() -> None:
    run = dataclasses.replace(report_runs.with_a_loss(), records=(), stages=None)
    figures = content.make(run)
    assert [attempt.steps for attempt in figures.attempts] == ["none", "none"]
    assert set(figures.chronology.seconds) == {
        LoggedActivity.WAITING,
        LoggedActivity.START,
        LoggedActivity.RESTART,
    }


@pytest.mark.parametrize(("has_pods", "begins"), [(True, (2, 16)), (False, (2.1, 16.1))])
def test_a_log_of_an_older_version_has_starts_from_pods_or_events(
    begins: tuple[float, float], *, has_pods: bool
) -> None:
    run = report_runs.with_a_loss()
    older = [record for record in run.records if record.event != outputs.TrainEvent.FIRST_STEP]
    pods = run.pods if has_pods else ()
    first, second = periods.find(dataclasses.replace(run, records=older, pods=pods))
    assert (first.began, second.began) == tuple(map(report_runs.at, begins))
    assert (first.resumed_step, second.resumed_step) == (0, 40)


def test_a_start_with_wrong_code_loses_no_step() -> None:
    """Ctrl-C, then a start that fails before its first step, then one that resumes."""
    lines = [*report_runs.attempt(2, 0, 4), *report_runs.attempt(60, 40, 4, 3)]
    lines.append(report_runs.line(70, outputs.TrainEvent.DONE, 80))
    failed = "digits-worker-0 exited with code 78 (bad configuration)"
    run = run_records.RunRecords(
        job=report_runs.job(ended=70),
        source="here",
        now=report_runs.at(70),
        events=[
            report_runs.event(0, names.Reason.JOB_STARTED),
            report_runs.event(11.2, names.Reason.JOB_SUSPENDED, "Ctrl-C stopped the run"),
            report_runs.event(30, names.Reason.JOB_RESUMED),
            report_runs.event(36, names.Reason.REPLICA_FAILED, failed),
            report_runs.event(59, names.Reason.JOB_RESUMED),
        ],
        pods=[
            report_runs.pod("worker-0", 1, 2, 12, "Error, exit code 75"),
            report_runs.pod("worker-0", 2, 31, 36, "Error, exit code 78"),
            report_runs.pod("worker-0", 3, 60, 70, "Completed"),
        ],
        records=report_runs.parsed(lines),
    )
    figures = content.make(run)
    assert [(attempt.steps, attempt.reason, attempt.lost) for attempt in figures.attempts] == [
        ("0 to 40", "JobSuspended", None),
        ("none", "ReplicaFailed", None),
        ("40 to 80", "", None),
    ]
    assert not {LoggedActivity.LOST, LoggedActivity.RESTART} & {*figures.chronology.seconds}


def test_a_script_that_ran_twice_in_a_folder_succeeded_twice() -> None:
    run = run_records.RunRecords(
        job=report_runs.job(ended=392),
        source="here",
        now=report_runs.at(392),
        events=[
            report_runs.event(0, names.Reason.JOB_STARTED),
            report_runs.event(0.2, names.Reason.REPLICAS_RUNNING),
            report_runs.event(39, names.Reason.WORKERS_SUCCEEDED),
            report_runs.event(248, names.Reason.JOB_RESUMED),
            report_runs.event(392, names.Reason.WORKERS_SUCCEEDED),
        ],
        pods=[
            report_runs.pod("worker-0", 1, 0, 39, "Completed"),
            report_runs.pod("worker-0", 2, 249, 391, "Completed"),
        ],
        missing_results="It is a script.",
    )
    figures = content.make(run)
    assert [
        (attempt.began, attempt.ended, attempt.cause, attempt.lost) for attempt in figures.attempts
    ] == [
        (0, 39, "Succeeded", None),
        (249, 392, "Succeeded", None),
    ]
    assert figures.chronology.seconds == pytest.approx(
        {
            LoggedActivity.UNKNOWN: 39 + 392 - 249,
            LoggedActivity.WAITING: 249 - 39,
        }
    )


def test_a_run_without_any_event_begins_with_its_first_record() -> None:
    run = report_runs.with_a_loss()
    older = [record for record in run.records if record.event != outputs.TrainEvent.FIRST_STEP]
    [period] = periods.find(dataclasses.replace(run, records=older, events=(), pods=()))
    assert period.began == report_runs.at(8)


def test_a_job_that_runs_trains_until_now() -> None:
    job = report_runs.job(names.State.RUNNING, ended=None)
    run = report_runs.with_a_loss()
    running = dataclasses.replace(run, job=job, records=run.records[:-1], events=run.events[:-1])
    seconds = content.make(running).chronology.seconds
    assert sum(seconds.values()) == pytest.approx(40)
    assert LoggedActivity.END not in seconds


@hypothesis.given(report_histories.histories())
def test_each_second_of_a_history_has_its_activity(lived: report_histories.History) -> None:
    divided = attribution.attribute(lived.run)
    assert divided.seconds == pytest.approx(lived.seconds)


@hypothesis.given(report_histories.histories())
def test_each_start_of_a_history_has_its_row(lived: report_histories.History) -> None:
    rows = [
        report_histories.Row(row.began, row.ended, row.steps, row.reason)
        for row in history.attempts(lived.run)
    ]
    assert rows == lived.rows
