"""When to look at a job though nothing happens: one heap of times, and pauses after failures."""

import asyncio
import datetime
import heapq
import itertools
import random
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tfparallel_operator import wall_clock

LONGEST_SLEEP_SECONDS = 30.0
"""The clock is asked again at least this often, for it may be set."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 300.0

K = TypeVar("K", bound=Hashable)

_SPARE = 64
"""Times that no longer count and stay in the heap, beside one for each key."""


class Timers(Generic[K]):
    """Fires each key at the earliest of the times that it was set to since it last fired.

    Firing too early is harmless: whoever is called sets the later time anew.
    """

    def __init__(
        self, fire: Callable[[K], None], clock: wall_clock.Clock = wall_clock.utc_now
    ) -> None:
        self._fire = fire
        self._clock = clock
        self._at: dict[K, datetime.datetime] = {}
        self._heap: list[tuple[datetime.datetime, int, K]] = []
        self._order = itertools.count()
        self._sooner = asyncio.Event()

    def set(self, key: K, at: datetime.datetime) -> None:
        """Fire a key at a time, unless it fires before."""
        known = self._at.get(key)
        if known is not None and known <= at:
            return
        self._at[key] = at
        heapq.heappush(self._heap, (at, next(self._order), key))
        if len(self._heap) > 2 * len(self._at) + _SPARE:
            self._heap = [(time, next(self._order), one) for one, time in self._at.items()]
            heapq.heapify(self._heap)
        self._sooner.set()

    def after(self, key: K, seconds: float) -> None:
        """Fire a key after some seconds."""
        self.set(key, self._clock() + datetime.timedelta(seconds=seconds))

    def fire_due(self) -> float | None:
        """Fire every key whose time has come; return the seconds until the next, if any."""
        now = self._clock()
        while self._heap:
            at, _, key = self._heap[0]
            if self._at.get(key) != at:
                heapq.heappop(self._heap)
            elif at <= now:
                heapq.heappop(self._heap)
                del self._at[key]
                self._fire(key)
            else:
                return (at - now).total_seconds()
        return None

    async def run(self) -> None:
        """Fire keys for ever."""
        while True:
            self._sooner.clear()
            left = self.fire_due()
            sleep = LONGEST_SLEEP_SECONDS if left is None else min(left, LONGEST_SLEEP_SECONDS)
            try:
                async with asyncio.timeout(sleep):
                    await self._sooner.wait()
            except TimeoutError:
                pass


class Backoff(Generic[K]):
    """How long to leave a key alone after failures: twice as long each time, up to a bound."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._failures: dict[K, int] = {}

    def failed(self, key: K) -> float:
        """Count a failure; return the seconds to wait, spread over the upper half."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(count, 20))
        return pause * (0.5 + 0.5 * self._draw())

    def succeeded(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)
