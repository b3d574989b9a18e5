"""The starts of training, and how each ended. Pure."""

import dataclasses
import datetime
import itertools
from collections.abc import Sequence

from tfparallel import models, train_log
from tfparallel.report import losses, starts
from tfparallel.report.run_records import RunRecords
from tfparallel_trainer.contract import outputs


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
    outcome: str
    """How its process ended, in words; empty where nobody saw it."""
    is_complete: bool
    """Whether all was trained at its end; who resumes such a run asks for more."""
    is_paused: bool
    """Whether the job waited after it, and did not restart at once."""
    kept_step: int | None
    """Its steps up to this one are part of what was trained later; None: all are."""

    @property
    def attempt(self) -> int | None:
        """The job's attempt, as the trainer recorded it."""
        attempt = self.records[0].fields.get("attempt") if self.records else None
        return None if attempt is None else int(attempt)

    @property
    def last_step(self) -> int:
        """The steps that were made at its end, as far as they are on record."""
        return max((record.step for record in self.records), default=self.resumed_step)

    @property
    def last_sign(self) -> datetime.datetime:
        """When it recorded something for the last time, or ended."""
        return self.records[-1].time if self.records else self.ended

    @property
    def kept_until(self) -> datetime.datetime:
        """Until when it made steps that later ones build on; the others were made again."""
        if self.first_step is None or self.kept_step is None:
            return self.ended
        kept = [
            record for record in self.records if self.resumed_step < record.step <= self.kept_step
        ]
        saved = [record for record in kept if record.event == outputs.TrainEvent.CHECKPOINT]
        return next((record.moment for record in reversed(saved or kept)), self.first_step)


def find(run: RunRecords) -> Sequence[Period]:
    """Return the periods of a run, oldest first."""
    begins = starts.find(run)
    listed = [
        _period(run, number, start, following)
        for number, (start, following) in enumerate(itertools.zip_longest(begins, begins[1:]), 1)
    ]
    return tuple(
        dataclasses.replace(period, kept_step=_kept_step(period, listed[period.number :]))
        for period in listed
    )


def lost_seconds(period: Period, following: Period) -> float | None:
    """Return what the end of a period cost: steps that were made again, and the restart.

    None: nothing was lost, because all was trained, or the job waited with all steps saved.
    """
    if period.is_complete:
        return None
    again = max(0.0, (period.ended - period.kept_until).total_seconds())
    if period.is_paused:
        return again or None
    back = following.first_step or following.ended
    return (back - period.ended).total_seconds() + again


def _period(
    run: RunRecords, number: int, start: starts.Start, following: starts.Start | None
) -> Period:
    end = run.end if following is None else following.began
    recorded = [
        record
        for record in run.records
        if start.began <= record.time and (record.time < end or following is None)
    ]
    last = recorded[-1].time if recorded else start.began
    after = [event for event in run.events if start.began <= event.time <= end]
    success = next((event for event in after if losses.is_success(event)), None)
    cause = None if success is not None else _find_cause(run, after, last)
    is_done = bool(recorded) and recorded[-1].event == outputs.TrainEvent.DONE
    is_complete = success is not None or (is_done and cause is None)
    event = success or cause
    if following is None and cause is None:
        ended = end
    elif event is not None:
        ended = max(last, event.time)
    else:
        ended = max(last, _seen_end(start) or last) if is_done or not recorded else last
    since = max(start.began, last - starts.SKEW) if event is None else event.time
    first = recorded[0] if recorded else None
    return Period(
        number=number,
        began=start.began,
        first_step=None if first is None else first.time,
        resumed_step=0 if first is None else _resumed_step(run, first),
        records=recorded,
        has_log=not run.missing_results,
        ended=ended,
        cause=cause,
        outcome="" if start.pod is None or _seen_end(start) is None else start.pod.outcome,
        is_complete=is_complete,
        is_paused=any(event.reason in losses.PAUSES and since <= event.time for event in after),
        kept_step=None,
    )


def _seen_end(start: starts.Start) -> datetime.datetime | None:
    return None if start.pod is None else start.pod.ended


def _find_cause(
    run: RunRecords, events: Sequence[models.Event], last: datetime.datetime
) -> models.Event | None:
    """Return what ended a period that recorded something for the last time at a moment.

    After a loss, the other processes go on until they are told to end, and save what they have.
    """
    pod = f"{run.job.name}-{run.job.coordinator}"
    final = (
        event for event in events if losses.may_fail_job(event) and event.time >= last - starts.SKEW
    )
    return next((event for event in events if losses.ends(event, pod)), next(final, None))


def _resumed_step(run: RunRecords, first: train_log.Record) -> int:
    """Return the steps before the first one of a process; older versions record it only by step."""
    if first.is_first_step:
        return first.step - 1
    saved = (
        record.step
        for record in run.records
        if record.time < first.time and record.event == outputs.TrainEvent.CHECKPOINT
    )
    return max((step for step in saved if step < first.step), default=0)


def _kept_step(period: Period, later: Sequence[Period]) -> int | None:
    """Return the first step that later processes went back to, until all was trained."""
    steps = []
    for following in () if period.is_complete else later:
        if following.first_step is not None:
            steps.append(following.resumed_step)
        if following.is_complete:
            break
    return min(steps, default=None)
