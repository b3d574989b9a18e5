"""Which jobs have to be looked at: each key once, and never two workers on one key."""

import asyncio
import collections
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar


class Key(NamedTuple):
    """A job by namespace and name."""

    namespace: str
    name: str


K = TypeVar("K", bound=Hashable)


class Queue(Generic[K]):
    """A queue of distinct keys; one that is added while it is worked on comes once more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, opened: bool = True) -> None:
        self._clock = clock
        self.opened = opened
        """Whether keys are taken in; a queue that nobody works on would only grow."""
        self._waiting: collections.OrderedDict[K, float] = collections.OrderedDict()
        self._running: dict[K, float] = {}
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
        if key in self._running:
            self._again.setdefault(key, now)
        elif key not in self._waiting:
            self._waiting[key] = now
            self._since.setdefault(key, now)
            self._ready.put_nowait(None)

    async def get(self) -> K:
        """Wait for a key and take it; `done` gives it back."""
        await self._ready.get()
        key, _ = self._waiting.popitem(last=False)
        self._running[key] = self._clock()
        return key

    def done(self, key: K, *, served: bool = True) -> None:
        """Say that the work on a key has ended; not `served`: what it was for is left to do."""
        del self._running[key]
        if served:
            del self._since[key]
        if key in self._again:
            self._since.setdefault(key, self._again.pop(key))
            self.add(key)

    def age(self, key: K) -> float:
        """Return the seconds since a key that is worked on was first added for this work."""
        return self._clock() - self._since[key]

    def oldest(self) -> float:
        """Return for how many seconds the oldest key has waited or been worked on; 0: idle."""
        since = [next(iter(self._waiting.values()), None), *self._running.values()]
        times = [moment for moment in since if moment is not None]
        return self._clock() - min(times) if times else 0.0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)
