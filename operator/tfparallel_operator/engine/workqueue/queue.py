"""Which jobs have to be looked at: each key once, and never two workers on one key.

Namespaces take turns, and none has all workers. So no job waits for those of another namespace,
however many these are and however slowly the API server writes them.
"""

import asyncio
import collections
import math
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from tfparallel_operator.engine.workqueue import turns


class Key(NamedTuple):
    """A job by namespace and name."""

    namespace: str
    name: str


K = TypeVar("K", bound=Hashable)

PATIENCE_SECONDS = 5.0
"""How long a key that yields lets others go before it."""


class _Lane(Generic[K]):
    """Keys that wait for a worker, and since when."""

    def __init__(self) -> None:
        self._since: collections.OrderedDict[K, float] = collections.OrderedDict()
        self._turns: turns.Turns[K] = turns.Turns()

    def add(self, namespace: str, key: K, now: float) -> None:
        self._since[key] = now
        self._turns.add(namespace, key)

    def take(self, may: Callable[[str], bool]) -> K | None:
        """Take the key whose turn it is of those namespaces that may have one."""
        key = self._turns.take_where(may)
        if key is not None:
            del self._since[key]
        return key

    @property
    def oldest(self) -> float:
        """When the key that has waited longest was added; infinity: none waits."""
        return next(iter(self._since.values()), math.inf)

    def __contains__(self, key: K) -> bool:
        return key in self._since

    def __len__(self) -> int:
        return len(self._since)


def _namespace_of(key: Hashable) -> str:
    """Return the namespace of a key; keys that have none take turns with each other."""
    return str(getattr(key, "namespace", ""))


class Queue(Generic[K]):
    """A queue of distinct keys; one that is added while it is worked on comes once more."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        opened: bool = True,
        spacing: float = 0.0,
        most_of_namespace: float = math.inf,
    ) -> None:
        """Create an empty queue.

        Args:
            clock: seconds of a clock that is never set.
            opened: whether keys are taken in from the start.
            spacing: seconds from one start of work on a key to the next, at least.
            most_of_namespace: how many keys of one namespace are worked on at the same time.
        """
        self._clock = clock
        self.opened = opened
        """Whether keys are taken in; a queue that nobody works on would only grow."""
        self._spacing = spacing
        self._most_of_namespace = most_of_namespace
        self._queued: _Lane[K] = _Lane()
        self._yielding: _Lane[K] = _Lane()
        """Keys that wait, and let others go first for a while."""
        self._yields: set[K] = set()
        self._running: dict[K, float] = {}
        self._taken_at = -math.inf
        """When a key was taken last."""
        self._resting: set[K] = set()
        """Keys whose work has ended, and may not begin again yet."""
        self._again: dict[K, float] = {}
        self._since: dict[K, float] = {}
        """When that was which no look has served yet, of each key."""
        self._changed = asyncio.Event()
        """Set when there may be a key to take."""

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
        elif key not in self._queued and key not in self._yielding:
            lane = self._yielding if key in self._yields else self._queued
            lane.add(_namespace_of(key), key, now)
            self._since.setdefault(key, now)
            self._changed.set()

    async def get(self) -> K:
        """Wait for a key and take it; `done` gives it back."""
        while (key := self._take()) is None:
            self._changed.clear()
            await self._changed.wait()
        self._running[key] = self._taken_at = self._clock()
        return key

    def _take(self) -> K | None:
        is_due = self._clock() - self._yielding.oldest >= PATIENCE_SECONDS
        lanes = (self._yielding, self._queued) if is_due else (self._queued, self._yielding)
        for lane in lanes:
            if (key := lane.take(self._has_worker)) is not None:
                return key
        return None

    def _has_worker(self, namespace: str) -> bool:
        """Whether one more key of a namespace may be worked on."""
        running = sum(_namespace_of(key) == namespace for key in self._running)
        return running < self._most_of_namespace

    def done(self, key: K, *, served: bool = True, yields: bool = False) -> None:
        """Say that the work on a key has ended; not `served`: what it was for is left to do.

        If it `yields`, the next work on it may wait until others have had theirs.
        """
        (self._yields.add if yields else self._yields.discard)(key)
        pause = self._running.pop(key) + self._spacing - self._clock()
        self._changed.set()
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
        now, lanes = self._clock(), (self._queued, self._yielding)
        return now - min(now, *(lane.oldest for lane in lanes), *self._running.values())

    def stuck(self) -> float:
        """Return for how many seconds one key has been worked on, or none taken of those that wait.

        A key that waits for longer waits for its turn: there may be very many of its namespace.
        """
        now, lanes = self._clock(), (self._queued, self._yielding)
        untaken_since = max(self._taken_at, min(lane.oldest for lane in lanes))
        return now - min(now, untaken_since, *self._running.values())

    def __len__(self) -> int:
        resting = len(self._resting & self._again.keys())
        return len(self._queued) + len(self._yielding) + len(self._running) + resting
