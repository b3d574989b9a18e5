"""Times at which a job is reconciled without an event: deadlines, and retries after failures."""

import asyncio
import datetime
import math
import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tfparallel_operator import wall_clock

LONGEST_SLEEP_SECONDS = 30.0
"""Longest time between two readings of the clock, which somebody may set."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 300.0

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Fires each key at the earliest of the times set since it last fired.

    The event loop keeps one handle for each key.
    """

    def __init__(
        self, fire: Callable[[K], None], clock: wall_clock.Clock = wall_clock.utc_now
    ) -> None:
        self._fire = fire
        self._clock = clock
        self._times: dict[K, tuple[datetime.datetime, asyncio.TimerHandle]] = {}

    def set(self, key: K, at: datetime.datetime) -> None:
        """Fire a key at a time, unless it fires earlier."""
        earlier = self._times.get(key)
        if earlier is None:
            self._wait(key, at)
        elif at < earlier[0]:
            earlier[1].cancel()
            self._wait(key, at)

    def after(self, key: K, seconds: float) -> None:
        """Fire a key after some seconds."""
        self.set(key, self._clock() + datetime.timedelta(seconds=seconds))

    def check(self, key: K) -> None:
        """Fire a key if it is due by the clock, which may differ from the event loop's."""
        at, handle = self._times.pop(key)
        handle.cancel()
        if at <= self._clock():
            self._fire(key)
        else:
            self._wait(key, at)

    def _wait(self, key: K, at: datetime.datetime) -> None:
        seconds = min((at - self._clock()).total_seconds(), LONGEST_SLEEP_SECONDS)
        self._times[key] = at, asyncio.get_running_loop().call_later(seconds, self.check, key)


class Backoff:
    """Pauses after failures: each twice as long as the last, up to a bound."""

    __slots__ = ("_draw", "_failures")

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._failures = 0

    def count_failure(self, longest: float = math.inf) -> float:
        """Count a failure, and return the seconds to wait: a random part of the upper half.

        They are at most `longest`, and at most `LONGEST_PAUSE_SECONDS`.
        """
        count = self._failures
        self._failures += 1
        bound = min(longest, LONGEST_PAUSE_SECONDS)
        pause = min(bound, FIRST_PAUSE_SECONDS * 2.0 ** min(count, 20))
        return pause * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """Forget the failures."""
        self._failures = 0
