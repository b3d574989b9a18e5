"""Which jobs have to be looked at: each key once, and never two workers on one key."""

import asyncio
import collections
import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar


class Key(NamedTuple):
    """A job by namespace and name."""

    namespace: str
    name: str


K = TypeVar("K", bound=Hashable)

PATIENCE_SECONDS = 5.0
"""How long a key that yields lets others go before it."""


class Queue(Generic[K]):
    """A queue of distinct keys; one that is added while it is worked on comes once more."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        opened: bool = True,
        spacing: float = 0.0,
    ) -> None:
        """Create an empty queue.

        Args:
            clock: seconds of a clock that is never set.
            opened: whether keys are taken in from the start.
            spacing: seconds from one start of work on a key to the next, at least.
        """
        self._clock = clock
        self.opened = opened
        """Whether keys are taken in; a queue that nobody works on would only grow."""
        self._spacing = spacing
        self._waiting: collections.OrderedDict[K, float] = collections.OrderedDict()
        self._yielding: collections.OrderedDict[K, float] = collections.OrderedDict()
        """Keys that wait, and let others go first for a while."""
        self._yields: set[K] = set()
        self._running: dict[K, float] = {}
        self._resting: set[K] = set()
        """Keys whose work has ended, and may not begin again yet."""
        self._again: dict[K, float] = {}
        self._since: dict[K, float] = {}
        """When that was which no look has served yet, of each key."""
        self._ready: asyncio.Queue[None] = asyncio.Queue()

    def open(self, keys: Iterable[K]) -> None:
        """Take keys in from now on, these first."""
        self.opened = True
        for key in keys:
            self.add(key)

    def add(self, key: K) -> None:
        """Have a key looked at, once the queue is open."""
        if not self.opened:
            return
        now = self._clock()
        if key in self._running or key in self._resting:
            self._again.setdefault(key, now)
        elif key not in self._waiting and key not in self._yielding:
            (self._yielding if key in self._yields else self._waiting)[key] = now
            self._since.setdefault(key, now)
            self._ready.put_nowait(None)

    async def get(self) -> K:
        """Wait for a key and take it; `done` gives it back."""
        await self._ready.get()
        longest = next(iter(self._yielding.values()), math.inf)
        is_due = not self._waiting or self._clock() - longest >= PATIENCE_SECONDS
        key, _ = (self._yielding if is_due else self._waiting).popitem(last=False)
        self._running[key] = self._clock()
        return key

    def done(self, key: K, *, served: bool = True, yields: bool = False) -> None:
        """Say that the work on a key has ended; not `served`: what it was for is left to do.

        If it `yields`, the next work on it may wait until others have had theirs.
        """
        (self._yields.add if yields else self._yields.discard)(key)
        pause = self._running.pop(key) + self._spacing - self._clock()
        if served:
            del self._since[key]
        if pause > 0:
            self._resting.add(key)
            asyncio.get_running_loop().call_later(pause, self._release, key)
        else:
            self._release(key)

    def _release(self, key: K) -> None:
        """Let work on a key begin again, now if something has happened since."""
        self._resting.discard(key)
        if key in self._again:
            self._since.setdefault(key, self._again.pop(key))
            self.add(key)

    def age(self, key: K) -> float:
        """Return the seconds since a key that is worked on was first added for this work."""
        return self._clock() - self._since[key]

    def oldest(self) -> float:
        """Return for how many seconds the oldest key has waited or been worked on; 0: idle."""
        now, lanes = self._clock(), (self._waiting, self._yielding)
        times = [moment for lane in lanes for moment in itertools.islice(lane.values(), 1)]
        return now - min((*times, *self._running.values()), default=now)

    def __len__(self) -> int:
        resting = len(self._resting & self._again.keys())
        return len(self._waiting) + len(self._yielding) + len(self._running) + resting
