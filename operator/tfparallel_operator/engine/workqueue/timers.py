"""When to look at a job though nothing happens: at times that were set, and after failures."""

import asyncio
import datetime
import math
import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tfparallel_operator import wall_clock

LONGEST_SLEEP_SECONDS = 30.0
"""The clock is asked again at least this often, for it may be set."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 300.0

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Fires each key at the earliest of the times that it was set to since it last fired.

    The event loop keeps one handle for each key.
    """

    def __init__(
        self, fire: Callable[[K], None], clock: wall_clock.Clock = wall_clock.utc_now
    ) -> None:
        self._fire = fire
        self._clock = clock
        self._times: dict[K, tuple[datetime.datetime, asyncio.TimerHandle]] = {}

    def set(self, key: K, at: datetime.datetime) -> None:
        """Fire a key at a time, unless it fires before."""
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
        """Fire a key if its time has come by the clock, which need not go as the loop's does."""
        at, handle = self._times.pop(key)
        handle.cancel()
        if at <= self._clock():
            self._fire(key)
        else:
            self._wait(key, at)

    def _wait(self, key: K, at: datetime.datetime) -> None:
        seconds = min((at - self._clock()).total_seconds(), LONGEST_SLEEP_SECONDS)
        self._times[key] = at, asyncio.get_running_loop().call_later(seconds, self.check, key)


class Backoff(Generic[K]):
    """How long to leave a key alone after failures: twice as long each time, up to a bound."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._failures: dict[K, int] = {}

    def failed(self, key: K, longest: float = math.inf) -> float:
        """Count a failure; return the seconds to wait, spread over the upper half.

        They are no more than the `longest` pause, which may be shorter than that of all.
        """
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        bound = min(longest, LONGEST_PAUSE_SECONDS)
        pause = min(bound, FIRST_PAUSE_SECONDS * 2.0 ** min(count, 20))
        return pause * (0.5 + 0.5 * self._draw())

    def succeeded(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)
