"""What a run did when, by its own records. Pure.

The timeline shows it. How long each activity took, the goodput of the status says.
"""

import collections
import dataclasses
import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence


class LoggedActivity(enum.StrEnum):
    """What a run does; of several at one time the first of this list counts.

    What goodput counts too has the same name.
    """

    CHECKPOINT = "checkpointing"
    """A checkpoint is written while training waits."""
    LOST = "lost steps"
    """Training that a restart threw away, because it was not saved."""
    EVALUATION = "evaluating"
    INPUT = "inputWait"
    """The devices wait for data."""
    TRAINING = "training"
    START = "starting"
    """From the start of processes to the end of the first step."""
    RESTART = "restarting"
    """From a loss to the end of the first step after it."""
    END = "ending"
    """From the last step to the end of the job: results are written."""
    UNKNOWN = "not on record"
    """Processes ran, or may have, and what would say what they did is gone."""
    WAITING = "waiting"
    """No process runs: the job is queued, scheduled, or suspended."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A part of a run, in seconds after its begin."""

    activity: LoggedActivity
    begin: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class Chronology:
    """A run divided among activities."""

    intervals: Sequence[Interval]
    """Without gaps and without overlap, in the order of time."""

    @property
    def seconds(self) -> Mapping[LoggedActivity, float]:
        """How long each activity took; those that took no time are left out."""
        total = dict.fromkeys(LoggedActivity, 0.0)
        for interval in self.intervals:
            total[interval.activity] += interval.end - interval.begin
        return {activity: seconds for activity, seconds in total.items() if seconds > 0}

    @property
    def length(self) -> float:
        """How long the run took."""
        return self.intervals[-1].end - self.intervals[0].begin if self.intervals else 0.0


def attribute(seconds: float, intervals: Iterable[Interval]) -> Chronology:
    """Divide the time from 0 to `seconds` among activities.

    Args:
        seconds: how long the run took.
        intervals: they may overlap, leave gaps, and reach beyond the run. What none covers is
            waiting.
    """
    return Chronology(tuple(_join_neighbors(_pieces(seconds, intervals))))


def _pieces(seconds: float, intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Cut the run at each begin and end of an interval."""
    changes: dict[float, collections.Counter[LoggedActivity]] = {0.0: collections.Counter()}
    for interval in intervals:
        begin, end = max(0.0, interval.begin), min(seconds, interval.end)
        if begin < end:
            changes.setdefault(begin, collections.Counter())[interval.activity] += 1
            changes.setdefault(end, collections.Counter())[interval.activity] -= 1
    active: collections.Counter[LoggedActivity] = collections.Counter()
    moments = sorted({*changes, seconds})
    for moment, following in itertools.pairwise(moments):
        active.update(changes.get(moment, {}))
        activity = next(
            (activity for activity in LoggedActivity if active[activity] > 0),
            LoggedActivity.WAITING,
        )
        yield Interval(activity, moment, following)


def _join_neighbors(pieces: Iterable[Interval]) -> Iterator[Interval]:
    """Join neighbors of one activity."""
    last: Interval | None = None
    for piece in pieces:
        if last is not None and last.activity is piece.activity:
            last = dataclasses.replace(last, end=piece.end)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last
