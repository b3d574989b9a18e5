"""The attempts of a run, and what each did when. Pure."""

import dataclasses
import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence

from tfparallel import models, train_log
from tfparallel.report import goodput, records
from tfparallel_operator.api import names
from tfparallel_trainer.contract import outputs

_LOSSES = frozenset(
    {
        names.Reason.REPLICA_FAILED,
        names.Reason.REPLICA_LOST,
        names.Reason.SOURCE_FAILED,
        names.Reason.JOB_EVICTED,
        names.Reason.JOB_SUSPENDED,
        names.Reason.REPLICAS_SCALED,
    }
)
"""After these, all replicas start again, or stay away."""

_PAUSES = frozenset(
    {names.Reason.JOB_SUSPENDED, names.Reason.JOB_EVICTED, names.Reason.JOB_RESUMED}
)
"""They say that the job waits until somebody resumes it or its queue has room, or has waited."""

_WHOLE: Mapping[str, goodput.Activity] = {
    outputs.TrainEvent.EVALUATION: goodput.Activity.EVALUATION,
    outputs.TrainEvent.DONE: goodput.Activity.END,
}
"""What all the time before a record was spent on."""

_SKEW = datetime.timedelta(seconds=1)
"""By which clocks of the trainer and of events may differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class Period:
    """The time of one process of the coordinator."""

    number: int
    began: datetime.datetime
    first_step: datetime.datetime | None
    """When its first step was made; None: it made none."""
    resumed_step: int
    """The steps that were made and saved before it."""
    records: Sequence[train_log.Record]
    """What it recorded, from the first step on."""
    ended: datetime.datetime
    cause: models.Event | None
    """What ended it; None: it runs, or all was trained, or nobody saw why it ended."""
    is_paused: bool
    """Whether the job waited after it, and did not restart at once."""

    @property
    def last_step(self) -> int:
        """The steps that were made at its end, as far as they are on record."""
        return max((record.step for record in self.records), default=self.resumed_step)


def find(run: records.Run) -> Sequence[Period]:
    """Return the periods of a run, oldest first."""
    moments = [*sorted(_begins(run)), run.end]
    return tuple(
        _period(run, number, begin, end)
        for number, (begin, end) in enumerate(itertools.pairwise(moments), 1)
    )


def intervals(run: records.Run) -> Iterator[goodput.Interval]:
    """Yield what the run did, in seconds after its begin."""
    periods = find(run)
    for place, period in enumerate(periods):
        following = periods[place + 1] if place + 1 < len(periods) else None
        is_restart = place > 0 and not periods[place - 1].is_paused
        is_over = run.job.is_finished and period.cause is None
        for activity, begin, end in _activities(
            period, following, is_restart=is_restart, is_over=is_over
        ):
            yield goodput.Interval(
                activity,
                (begin - run.begin).total_seconds(),
                (end - run.begin).total_seconds(),
            )


def lost_seconds(run: records.Run, period: Period, following: Period) -> float:
    """Return what the end of a period cost: restart, and steps that were made again."""
    back = following.first_step or following.ended
    lost = (period.ended - _saved_time(period, following.resumed_step)).total_seconds()
    return (back - period.ended).total_seconds() + max(0.0, lost)


def _begins(run: records.Run) -> Iterator[datetime.datetime]:
    """Yield when processes started.

    The record of a first step says when its process started. A process that recorded none is known
    from the event that replicas run; training that goes on over such an event had one that stayed.
    """
    firsts = [record for record in run.records if record.is_first_step]
    for record in firsts:
        yield record.time - datetime.timedelta(seconds=float(record.fields.get("seconds", 0.0)))
    running = [event.time for event in run.events if event.reason == names.Reason.REPLICAS_RUNNING]
    for begin, end in itertools.pairwise([*running, run.end]):
        recorded = any(begin < record.time <= end for record in run.records)
        if not recorded or not firsts:
            yield begin
    if run.records and not firsts and not running:
        yield run.records[0].time


def _period(
    run: records.Run, number: int, begin: datetime.datetime, end: datetime.datetime
) -> Period:
    recorded = [
        record
        for record in run.records
        if begin <= record.time and (record.time < end or end == run.end)
    ]
    last = recorded[-1].time if recorded else begin
    after = [event for event in run.events if last - _SKEW <= event.time <= end]
    cause = next((event for event in after if event.reason in _LOSSES), None)
    is_last = end == run.end
    first = recorded[0] if recorded else None
    ended = end if is_last else last
    return Period(
        number=number,
        began=begin,
        first_step=None if first is None else first.time,
        resumed_step=0 if first is None else _resumed_step(run, first),
        records=recorded,
        ended=max(last, cause.time) if cause is not None else ended,
        cause=cause,
        is_paused=any(event.reason in _PAUSES for event in after),
    )


def _resumed_step(run: records.Run, first: train_log.Record) -> int:
    """Return the steps before the first one of a process; older versions record it only by step."""
    if first.is_first_step:
        return first.step - 1
    saved = (
        record.step
        for record in run.records
        if record.time < first.time and record.event == outputs.TrainEvent.CHECKPOINT
    )
    return max((step for step in saved if step < first.step), default=0)


def _activities(
    period: Period, following: Period | None, *, is_restart: bool, is_over: bool
) -> Iterator[tuple[goodput.Activity, datetime.datetime, datetime.datetime]]:
    activity = goodput.Activity
    start = activity.RESTART if is_restart else activity.START
    yield start, period.began, period.first_step or period.ended
    for before, record in itertools.pairwise(period.records):
        if record.event in _WHOLE:
            yield _WHOLE[record.event], before.time, record.time
            continue
        waited = (record.time - before.time) * _input_wait(record)
        yield activity.INPUT, record.time - waited, record.time
        yield activity.TRAINING, before.time, record.time - waited
    for record in period.records:
        if record.event == outputs.TrainEvent.CHECKPOINT:
            seconds = datetime.timedelta(seconds=float(record.fields.get("seconds", 0.0)))
            yield activity.CHECKPOINT, record.time - seconds, record.time
    last = period.records[-1].time if period.records else period.ended
    if following is None:
        yield activity.END if is_over else activity.TRAINING, last, period.ended
        return
    saved = _saved_time(period, following.resumed_step)
    if period.first_step is not None:
        yield activity.LOST, saved, period.ended
    if not period.is_paused:
        yield activity.RESTART, period.ended, following.began


def _saved_time(period: Period, resumed_step: int) -> datetime.datetime:
    """Return until when the steps of a period were saved for the next one."""
    saved = [
        record.time
        for record in period.records
        if record.event == outputs.TrainEvent.CHECKPOINT and record.step <= resumed_step
    ]
    return saved[-1] if saved else period.first_step or period.ended


def _input_wait(record: train_log.Record) -> float:
    share = record.input_wait or 0.0
    return min(1.0, max(0.0, share)) if record.event == outputs.TrainEvent.TRAIN else 0.0
