"""The attempts of a run, and what each did when. Pure."""

import dataclasses
import datetime
import itertools
from collections.abc import Iterator, Mapping, Sequence

from tfparallel import models, train_log
from tfparallel.report import goodput, losses, mesh, records
from tfparallel_operator.api import names
from tfparallel_trainer.contract import outputs

_WHOLE: Mapping[str, goodput.Activity] = {
    outputs.TrainEvent.EVALUATION: goodput.Activity.EVALUATION,
    outputs.TrainEvent.DONE: goodput.Activity.END,
}
"""What all the time before a record was spent on."""

_Span = tuple[goodput.Activity, datetime.datetime, datetime.datetime]
"""An activity from a moment to another."""

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
    has_log: bool
    """Whether a train log is here, which says what the process did."""
    ended: datetime.datetime
    cause: models.Event | None
    """What ended it; None: it runs, or all was trained, or nobody saw why it ended."""
    is_paused: bool
    """Whether the job waited after it, and did not restart at once."""

    @property
    def attempt(self) -> int | None:
        """The job's attempt, as the trainer recorded it."""
        attempt = self.records[0].fields.get("attempt") if self.records else None
        return None if attempt is None else int(attempt)

    @property
    def is_complete(self) -> bool:
        """Whether all was trained at its end; who resumes such a run asks for more."""
        is_done = bool(self.records) and self.records[-1].event == outputs.TrainEvent.DONE
        return self.cause is None and is_done

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
    for activity, begin, end in (*_unseen(run, periods), *_seen(run, periods)):
        yield goodput.Interval(activity, run.seconds_at(begin), run.seconds_at(end))


def _unseen(run: records.Run, periods: Sequence[Period]) -> Iterator[_Span]:
    """Yield the time before the first period, if what would say so of an earlier one is gone."""
    status = run.job.status
    has_start = any(losses.starts_job(event) for event in run.events)
    if status.attempt and not run.records and not has_start:
        first = periods[0].began if periods else run.end
        yield goodput.Activity.UNKNOWN, min(status.start_time or run.begin, first), first


def _seen(run: records.Run, periods: Sequence[Period]) -> Iterator[_Span]:
    for place, period in enumerate(periods):
        following = periods[place + 1] if place + 1 < len(periods) else None
        before = periods[place - 1] if place > 0 else None
        is_restart = before is not None and not (before.is_paused or before.is_complete)
        is_over = run.job.is_finished and period.cause is None
        yield from _activities(period, following, is_restart=is_restart, is_over=is_over)
        if following is None and period.cause and not (run.job.is_finished or period.is_paused):
            yield goodput.Activity.RESTART, period.ended, run.end


def lost_seconds(period: Period, following: Period) -> float | None:
    """Return what the end of a period cost: restart, and steps that were made again.

    None: all was trained.
    """
    if period.is_complete:
        return None
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
    if firsts or running:
        return
    if run.records:
        yield run.records[0].time
    else:
        coordinator = next(iter(mesh.training_replicas(run)), "")
        yield from (pod.started for pod in run.pods if pod.replica == coordinator)


def _period(
    run: records.Run, number: int, begin: datetime.datetime, end: datetime.datetime
) -> Period:
    recorded = [
        record
        for record in run.records
        if begin <= record.time and (record.time < end or end == run.end)
    ]
    last = recorded[-1].time if recorded else begin
    cause = _cause(run, begin, last, end)
    is_last = end == run.end
    first = recorded[0] if recorded else None
    ended = end if is_last else last
    since = last - _SKEW if cause is None else cause.time
    return Period(
        number=number,
        began=begin,
        first_step=None if first is None else first.time,
        resumed_step=0 if first is None else _resumed_step(run, first),
        records=recorded,
        has_log=not run.missing_results,
        ended=max(last, cause.time) if cause is not None else ended,
        cause=cause,
        is_paused=any(
            event.reason in losses.PAUSES for event in run.events if since <= event.time <= end
        ),
    )


def _cause(
    run: records.Run, begin: datetime.datetime, last: datetime.datetime, end: datetime.datetime
) -> models.Event | None:
    """Return what ended a period.

    After a loss, the other processes go on until they are told to end, and save what they have.
    """
    during = [event for event in run.events if begin <= event.time <= end]
    pod = f"{run.job.name}-{next(iter(mesh.training_replicas(run)), '')}"
    after = (one for one in during if losses.is_loss(one) and one.time >= last - _SKEW)
    return next((one for one in during if losses.ends(one, pod)), next(after, None))


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
) -> Iterator[_Span]:
    activity = goodput.Activity
    start = activity.RESTART if is_restart else activity.START
    start = start if period.has_log else activity.UNKNOWN
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
    if period.is_complete:
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
