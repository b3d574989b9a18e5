"""What a run did when: the activities of its periods. Pure."""

import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence

from tfparallel import train_log
from tfparallel.report import chronology, losses, periods, run_records
from tfparallel_trainer.contract import outputs

_WHOLE: Mapping[str, chronology.LoggedActivity] = {
    outputs.TrainEvent.EVALUATION: chronology.LoggedActivity.EVALUATION,
    outputs.TrainEvent.DONE: chronology.LoggedActivity.END,
}
"""What all the time before a record was spent on."""

_Span = tuple[chronology.LoggedActivity, datetime.datetime, datetime.datetime]
"""An activity from a moment to another."""


def attribute(run: run_records.RunRecords) -> chronology.Chronology:
    """Divide the time of a run among activities."""
    listed = periods.find(run)
    intervals = (
        chronology.Interval(activity, run.seconds_at(begin), run.seconds_at(end))
        for activity, begin, end in (*_unseen(run, listed), *_seen(run, listed))
    )
    return chronology.attribute((run.end - run.begin).total_seconds(), intervals)


def _unseen(run: run_records.RunRecords, listed: Sequence[periods.Period]) -> Iterator[_Span]:
    """Yield the time before the first period, if what would say so of an earlier one is gone."""
    status = run.job.status
    has_start = any(losses.starts_job(event) for event in run.events)
    if status.attempt and not run.records and not has_start:
        first = listed[0].began if listed else run.end
        yield chronology.LoggedActivity.UNKNOWN, min(status.start_time or run.begin, first), first


def _seen(run: run_records.RunRecords, listed: Sequence[periods.Period]) -> Iterator[_Span]:
    before = None
    for period, following in itertools.zip_longest(listed, listed[1:]):
        is_restart = before is not None and not (before.is_paused or before.is_complete)
        yield from _process(period, is_restart=is_restart)
        is_over = period.is_complete or (
            following is None and run.job.is_finished and period.cause is None
        )
        tail = chronology.LoggedActivity.END if is_over else chronology.LoggedActivity.TRAINING
        yield tail, period.last_sign, period.ended
        if following is not None:
            yield chronology.LoggedActivity.LOST, period.kept_until, period.ended
        is_restarting = not (run.job.is_finished if following is None else period.is_complete)
        if is_restarting and not period.is_paused and (following or period.cause):
            began = run.end if following is None else following.began
            yield chronology.LoggedActivity.RESTART, period.ended, began
        before = period


def _process(period: periods.Period, *, is_restart: bool) -> Iterator[_Span]:
    """Yield what a process did, as far as it recorded that."""
    start = chronology.LoggedActivity.RESTART if is_restart else chronology.LoggedActivity.START
    start = start if period.has_log else chronology.LoggedActivity.UNKNOWN
    yield start, period.began, period.first_step or period.ended
    ordered = sorted(period.records, key=lambda record: record.moment)
    for before, record in itertools.pairwise(ordered):
        if record.event in _WHOLE:
            yield _WHOLE[record.event], before.moment, record.moment
            continue
        waited = (record.moment - before.moment) * _input_wait(record)
        yield chronology.LoggedActivity.INPUT, record.moment - waited, record.moment
        yield chronology.LoggedActivity.TRAINING, before.moment, record.moment - waited
    for record in period.records:
        if record.event == outputs.TrainEvent.CHECKPOINT:
            seconds = datetime.timedelta(seconds=float(record.fields.get("seconds", 0.0)))
            yield chronology.LoggedActivity.CHECKPOINT, record.moment - seconds, record.moment


def _input_wait(record: train_log.Record) -> float:
    share = record.input_wait or 0.0
    return min(1.0, max(0.0, share)) if record.event == outputs.TrainEvent.TRAIN else 0.0
