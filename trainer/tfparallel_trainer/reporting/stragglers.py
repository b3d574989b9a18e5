"""Finds the replica that stays slower than the others."""

import collections
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tfparallel_trainer.contract import progress

WINDOW_SECONDS = 30.0
"""Replicas are compared over their steps of the last so many seconds."""

_WINDOW_STEPS = 10
"""Steps that the median replica makes in a window: it is longer where steps take long."""

_SNAPSHOTS = 20
"""How many comparisons are due in a window."""

_CAUGHT_UP = 1.25
"""A straggler has caught up if it takes less than this many times as long as the median of the
others. It is below `progress.STRAGGLER_FACTOR`, so that a straggler does not come and go."""

_LOST_SHARE = 0.1
"""A straggler loses more than this share of the time against the median of the others."""


class Effort(NamedTuple):
    """What a replica has spent on its steps so far."""

    steps: int
    seconds: float
    """If replicas do not wait for each other, seconds of any clock; else those without waiting."""


class PaceComparison:
    """Compares how long replicas take for a step, over a window that moves with time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a straggler; `clock` returns seconds."""
        self._clock = clock
        self._snapshots: collections.deque[tuple[float, Mapping[str, Effort]]] = collections.deque()
        self.straggler: str | None = None
        """The straggler; None: no replica is known to be one."""

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next comparison."""
        seconds = math.inf if not self._snapshots else self._clock() - self._snapshots[-1][0]
        return seconds >= WINDOW_SECONDS / _SNAPSHOTS

    def add(self, efforts: Mapping[str, Effort]) -> str | None:
        """Take in what each replica has spent; return a sentence for people if that is news.

        A replica without an effort is absent. It is compared once it has one for a whole window.
        """
        self._snapshots.append((self._clock(), efforts))
        while len(self._snapshots) > 1 and self._is_window(since=1):
            self._snapshots.popleft()
        return self._compare() if self._is_window(since=0) else None

    def _is_window(self, since: int) -> bool:
        """Whether enough time and steps have passed since a snapshot."""
        steps = [effort.steps for effort in self._efforts_since(since).values()]
        seconds = self._snapshots[-1][0] - self._snapshots[since][0]
        return seconds >= WINDOW_SECONDS and (
            not steps or statistics.median_high(steps) >= _WINDOW_STEPS
        )

    def _efforts_since(self, since: int) -> dict[str, Effort]:
        """What each replica has spent since a snapshot, but for those that were absent."""
        snapshots = [efforts for _, efforts in self._snapshots][since:]
        return {
            replica: Effort(
                effort.steps - snapshots[0][replica].steps,
                effort.seconds - snapshots[0][replica].seconds,
            )
            for replica, effort in snapshots[-1].items()
            if all(replica in efforts for efforts in snapshots)
        }

    def _compare(self) -> str | None:
        """Compare the replicas over the window. An earlier straggler stays one while it is slow."""
        efforts, earlier = self._efforts_since(0), self.straggler
        seconds = self._snapshots[-1][0] - self._snapshots[0][0]
        if len(efforts) < 2:
            self.straggler = None
            return None
        if earlier in efforts and _is_slow(earlier, efforts, _CAUGHT_UP, seconds):
            return None
        slowest = max(efforts, key=lambda replica: _seconds_of_step(efforts[replica]))
        if _is_slow(slowest, efforts, progress.STRAGGLER_FACTOR, seconds):
            self.straggler = slowest
            return f"warning: {slowest} is slow: {_describe(slowest, efforts, seconds)}"
        self.straggler = None
        return f"{earlier} keeps up with the other replicas again" if earlier in efforts else None


def _describe(replica: str, efforts: Mapping[str, Effort], window_seconds: float) -> str:
    if not efforts[replica].steps:
        return f"it has made no step for {window_seconds:.0f} s"
    seconds, others = _seconds_of_step(efforts[replica]), _median_of_others(replica, efforts)
    return (
        f"in the last {window_seconds:.0f} s, its steps took {progress.format_seconds(seconds)} "
        f"each, and those of the other replicas {progress.format_seconds(others)}"
    )


def _is_slow(
    replica: str, efforts: Mapping[str, Effort], factor: float, window_seconds: float
) -> bool:
    """Whether a replica takes so many times as long as the others, and loses time that counts."""
    effort, median = efforts[replica], _median_of_others(replica, efforts)
    lost = effort.seconds - median * effort.steps
    return _seconds_of_step(effort) > factor * median and lost > _LOST_SHARE * window_seconds


def _median_of_others(replica: str, efforts: Mapping[str, Effort]) -> float:
    return statistics.median(
        _seconds_of_step(effort) for name, effort in efforts.items() if name != replica
    )


def _seconds_of_step(effort: Effort) -> float:
    return effort.seconds / effort.steps if effort.steps else math.inf
