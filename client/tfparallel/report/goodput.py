"""Where the time of a run went: each second belongs to one activity. Pure."""

import collections
import dataclasses
import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence


class Activity(enum.StrEnum):
    """What a run does; of several at one time the first of this list counts."""

    CHECKPOINT = "checkpoint"
    """A checkpoint is written while training waits."""
    LOST = "lost steps"
    """Training that a restart threw away, because it was not saved."""
    EVALUATION = "evaluation"
    INPUT = "input wait"
    """The devices wait for data."""
    TRAINING = "training"
    START = "start"
    """From the start of processes to the end of the first step."""
    RESTART = "restart"
    """From a loss to the end of the first step after it."""
    END = "end"
    """From the last step to the end of the job: results are written."""
    UNKNOWN = "not on record"
    """Processes ran, or may have, and what would say what they did is gone."""
    WAITING = "waiting"
    """No process runs: the job is queued, scheduled, or suspended."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A part of a run, in seconds after its begin."""

    activity: Activity
    begin: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class Goodput:
    """A run divided among activities."""

    intervals: Sequence[Interval]
    """Without gaps and without overlap, in the order of time."""

    @property
    def seconds(self) -> Mapping[Activity, float]:
        """How long each activity took; those that took no time are left out."""
        total = dict.fromkeys(Activity, 0.0)
        for interval in self.intervals:
            total[interval.activity] += interval.end - interval.begin
        return {activity: seconds for activity, seconds in total.items() if seconds > 0}

    @property
    def whole(self) -> float:
        """How long the run took."""
        return self.intervals[-1].end - self.intervals[0].begin if self.intervals else 0.0

    @property
    def share(self) -> float:
        """The part of the time that training took."""
        return self.seconds.get(Activity.TRAINING, 0.0) / self.whole if self.whole else 0.0


def attribute(seconds: float, intervals: Iterable[Interval]) -> Goodput:
    """Divide the time from 0 to `seconds` among activities.

    Args:
        seconds: how long the run took.
        intervals: they may overlap, leave gaps, and reach beyond the run. What none covers is
            waiting.
    """
    return Goodput(tuple(_join_neighbors(_pieces(seconds, intervals))))


def _pieces(seconds: float, intervals: Iterable[Interval]) -> Iterator[Interval]:
    """Cut the run at each begin and end of an interval."""
    changes: dict[float, collections.Counter[Activity]] = {0.0: collections.Counter()}
    for interval in intervals:
        begin, end = max(0.0, interval.begin), min(seconds, interval.end)
        if begin < end:
            changes.setdefault(begin, collections.Counter())[interval.activity] += 1
            changes.setdefault(end, collections.Counter())[interval.activity] -= 1
    active: collections.Counter[Activity] = collections.Counter()
    moments = sorted({*changes, seconds})
    for moment, following in itertools.pairwise(moments):
        active.update(changes.get(moment, {}))
        activity = next(
            (activity for activity in Activity if active[activity] > 0), Activity.WAITING
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
