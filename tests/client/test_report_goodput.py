"""Where the time of a run went: each second belongs to one activity."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing import report_runs
from tfparallel.report import content, goodput, periods
from tfparallel_operator.api import names
from tfparallel_trainer.contract import outputs

SECONDS = st.floats(-1e6, 1e6, allow_nan=False)


@st.composite
def intervals(draw: st.DrawFn) -> list[goodput.Interval]:
    activity = st.sampled_from(goodput.Activity)
    return [
        goodput.Interval(draw(activity), *sorted((draw(SECONDS), draw(SECONDS))))
        for _ in range(draw(st.integers(0, 8)))
    ]


@given(intervals(), st.floats(0, 1e6))
def test_all_seconds_belong_to_one_activity(drawn: list[goodput.Interval], whole: float) -> None:
    divided = goodput.attribute(whole, drawn)
    assert all(seconds > 0 for seconds in divided.seconds.values())
    assert sum(divided.seconds.values()) == pytest.approx(whole)
    assert divided.whole == pytest.approx(whole)
    assert 0 <= divided.share <= 1
    for one, other in itertools.pairwise(divided.intervals):
        assert one.end == other.begin
        assert one.activity is not other.activity


@given(intervals(), st.floats(1, 1e6), st.floats(0, 1))
def test_a_moment_belongs_to_the_first_activity_that_covers_it(
    drawn: list[goodput.Interval], whole: float, share: float
) -> None:
    divided = goodput.attribute(whole, drawn)
    for interval in divided.intervals:
        middle = interval.begin + share * (interval.end - interval.begin)
        if interval.begin < middle < interval.end:
            covering = {one.activity for one in drawn if one.begin <= middle < one.end}
            expected = next((one for one in goodput.Activity if one in covering), None)
            assert interval.activity is (expected or goodput.Activity.WAITING)


def test_a_run_that_lost_a_worker() -> None:
    run = report_runs.with_a_loss()
    figures = content.make(run)
    activity = goodput.Activity
    assert figures.goodput.seconds == pytest.approx(
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
    assert sum(figures.goodput.seconds.values()) == pytest.approx(30)
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
        dataclasses.replace(one, reason=reason.value)
        if one.reason == names.Reason.REPLICA_FAILED
        else one
        for one in run.events
    ]
    seconds = content.make(dataclasses.replace(run, events=paused)).goodput.seconds
    # Of a local run that Ctrl-C ended no event tells the end, so its last record counts.
    waited = 3 if reason is names.Reason.JOB_SUSPENDED else 16 - 12
    assert seconds[goodput.Activity.WAITING] == pytest.approx(2 + waited)
    assert seconds[goodput.Activity.START] == pytest.approx(5 + 5)
    assert goodput.Activity.RESTART not in seconds


def test_a_run_that_is_resumed_for_more_epochs_has_lost_nothing() -> None:
    run = report_runs.with_a_loss()
    lines = [
        *report_runs.attempt(2, 0, 4),
        report_runs.line(11.6, outputs.TrainEvent.DONE, 40),
        *report_runs.attempt(16, 40, 5, 2),
        report_runs.line(28, outputs.TrainEvent.DONE, 90),
    ]
    events = [
        dataclasses.replace(one, reason=names.Reason.JOB_RESUMED.value, message="attempt 2")
        if one.reason == names.Reason.REPLICA_FAILED
        else one
        for one in run.events
    ]
    resumed = dataclasses.replace(run, records=report_runs.parsed(lines), events=events)
    figures = content.make(resumed)
    assert [(one.cause, one.lost) for one in figures.attempts] == [("Succeeded", None)] * 2
    seconds = figures.goodput.seconds
    assert not {goodput.Activity.LOST, goodput.Activity.RESTART} & {*seconds}
    assert seconds[goodput.Activity.WAITING] == pytest.approx(2 + 16 - 11.6)
    assert seconds[goodput.Activity.START] == pytest.approx(5 + 5)


def test_a_worker_that_comes_back_alone_ends_no_period() -> None:
    run = report_runs.with_a_loss()
    lines = [*report_runs.attempt(2, 0, 20)]
    events = [
        dataclasses.replace(one, message=one.message.replace("all replicas", "this replica"))
        for one in run.events
    ]
    alone = dataclasses.replace(run, records=report_runs.parsed(lines), events=events)
    [period] = periods.find(alone)
    assert (period.last_step, period.cause) == (200, None)


def test_a_job_before_its_first_step_starts_and_restarts() -> None:
    run = dataclasses.replace(report_runs.with_a_loss(), records=(), stages=None)
    figures = content.make(run)
    assert [attempt.steps for attempt in figures.attempts] == ["none", "none"]
    assert figures.goodput.share == 0
    assert set(figures.goodput.seconds) == {
        goodput.Activity.WAITING,
        goodput.Activity.START,
        goodput.Activity.RESTART,
    }


def test_a_log_of_an_older_version_has_starts_from_events() -> None:
    run = report_runs.with_a_loss()
    older = [one for one in run.records if one.event != outputs.TrainEvent.FIRST_STEP]
    first, second = periods.find(dataclasses.replace(run, records=older))
    assert [period.began for period in (first, second)] == [
        report_runs.at(2.1),
        report_runs.at(16.1),
    ]
    assert (first.resumed_step, second.resumed_step) == (0, 40)


def test_a_run_without_any_event_begins_with_its_first_record() -> None:
    run = report_runs.with_a_loss()
    older = [one for one in run.records if one.event != outputs.TrainEvent.FIRST_STEP]
    [period] = periods.find(dataclasses.replace(run, records=older, events=()))
    assert period.began == report_runs.at(8)


def test_a_job_that_runs_trains_until_now() -> None:
    job = report_runs.job(names.State.RUNNING, ended=None)
    run = report_runs.with_a_loss()
    running = dataclasses.replace(run, job=job, records=run.records[:-1], events=run.events[:-1])
    seconds = content.make(running).goodput.seconds
    assert sum(seconds.values()) == pytest.approx(40)
    assert goodput.Activity.END not in seconds
