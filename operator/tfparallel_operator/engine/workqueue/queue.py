"""The queue of jobs to reconcile: each key once, and never two workers on one key.

A key is the namespace and the name of a job. It carries no event: whoever takes a key observes the
job and all its children as they are now. So many events on one job need a single reconcile.

As in client-go's workqueue, a key is in at most one of three states.

- A queued key waits for a worker. To add it again changes nothing.
- A worker processes a key from `get` to `done`. A key that is added meanwhile becomes dirty, and is
  queued again after `done`. So events during a reconcile are not lost.
- A key rests if its last reconcile began less than `spacing` seconds ago. Like a key that is
  processed, it becomes dirty. So a flood of events on one job leaves the workers to other jobs.

Namespaces take turns (`turns`), and within a namespace the oldest key comes first. A namespace has
at most `most_of_namespace` workers. So no job waits for the jobs of another namespace, however many
these are, and however slowly the API server answers their writes.

After `done(low_priority=True)`, other keys come before a key the next time. This delays the first
status of a new job until the pods of other new jobs exist (`core.life.start`). When the key is
`PATIENCE_SECONDS` old, it comes before other keys, so it cannot starve.

The queue knows neither deadlines nor failures. `timers.Timers` adds a key when a deadline, a pause
or a retry is due. `timers.Backoff` says how long to wait after a failure. The worker then calls
`done(served=False)`, so that the age of the key still counts from the unserved event.

`age` is the delay between an event and its status, for the metrics. `oldest` and `stuck` are for
the probes. If one worker has had a key for minutes, or no worker takes any key, the process must
restart. A key that waits for its turn isn't stuck.
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
"""How long a key of low priority waits behind others."""


class _Lane(Generic[K]):
    """Queued keys, and since when."""

    def __init__(self) -> None:
        self._since: collections.OrderedDict[K, float] = collections.OrderedDict()
        self._turns: turns.Turns[K] = turns.Turns()

    def add(self, namespace: str, key: K, now: float) -> None:
        self._since[key] = now
        self._turns.add(namespace, key)

    def take(self, may: Callable[[str], bool]) -> K | None:
        """Take the key whose turn it is, of the namespaces that may have a worker."""
        key = self._turns.take_where(may)
        if key is not None:
            del self._since[key]
        return key

    @property
    def oldest(self) -> float:
        """When the oldest key was queued; infinity: the lane is empty."""
        return next(iter(self._since.values()), math.inf)

    def __contains__(self, key: K) -> bool:
        return key in self._since

    def __len__(self) -> int:
        return len(self._since)


def _namespace_of(key: Hashable) -> str:
    """Return the namespace of a key; keys that have none take turns with each other."""
    return str(getattr(key, "namespace", ""))


class Queue(Generic[K]):
    """A queue of distinct keys, each with one worker at a time."""

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
            opened: whether the queue accepts keys from the start.
            spacing: minimum seconds between the starts of two reconciles of a key.
            most_of_namespace: maximum number of workers for the keys of one namespace.
        """
        self._clock = clock
        self.opened = opened
        """Whether the queue accepts keys. Without workers it would only grow."""
        self._spacing = spacing
        self._most_of_namespace = most_of_namespace
        self._lane: _Lane[K] = _Lane()
        self._low_lane: _Lane[K] = _Lane()
        """Queued keys of low priority."""
        self._low_priority: set[K] = set()
        """Keys that are queued with low priority when they are added."""
        self._processing: dict[K, float] = {}
        """Keys that a worker has, and since when."""
        self._taken_at = -math.inf
        """When a worker last took a key."""
        self._resting: set[K] = set()
        """Keys that are done, and whose spacing is not over."""
        self._dirty: dict[K, float] = {}
        """Processing and resting keys that were added again, and when."""
        self._unserved_since: dict[K, float] = {}
        """Time of each key's oldest event that no reconcile has handled."""
        self._changed = asyncio.Event()
        """Set when there may be a key to take."""

    def open(self, keys: Iterable[K]) -> None:
        """Accept keys from now on, starting with these."""
        self.opened = True
        for key in keys:
            self.add(key)

    def add(self, key: K) -> None:
        """Queue a key, or mark it dirty; do nothing before the queue is open."""
        if not self.opened:
            return
        now = self._clock()
        if key in self._processing or key in self._resting:
            self._dirty.setdefault(key, now)
        elif key not in self._lane and key not in self._low_lane:
            lane = self._low_lane if key in self._low_priority else self._lane
            lane.add(_namespace_of(key), key, now)
            self._unserved_since.setdefault(key, now)
            self._changed.set()

    async def get(self) -> K:
        """Wait for a key and take it, until `done`."""
        while (key := self._take()) is None:
            self._changed.clear()
            await self._changed.wait()
        self._processing[key] = self._taken_at = self._clock()
        return key

    def _take(self) -> K | None:
        is_due = self._clock() - self._low_lane.oldest >= PATIENCE_SECONDS
        lanes = (self._low_lane, self._lane) if is_due else (self._lane, self._low_lane)
        for lane in lanes:
            if (key := lane.take(self._has_worker)) is not None:
                return key
        return None

    def _has_worker(self, namespace: str) -> bool:
        """Whether a namespace may have one more worker."""
        running = sum(_namespace_of(key) == namespace for key in self._processing)
        return running < self._most_of_namespace

    def done(self, key: K, *, served: bool = True, low_priority: bool = False) -> None:
        """Return a key after its reconcile.

        Args:
            key: the key.
            served: whether the reconcile has handled the events before it.
            low_priority: whether other keys come first the next time.
        """
        (self._low_priority.add if low_priority else self._low_priority.discard)(key)
        pause = self._processing.pop(key) + self._spacing - self._clock()
        self._changed.set()
        if served:
            del self._unserved_since[key]
        if pause > 0:
            self._resting.add(key)
            asyncio.get_running_loop().call_later(pause, self._release, key)
        else:
            self._release(key)

    def _release(self, key: K) -> None:
        """End the rest of a key, and queue it if it is dirty."""
        self._resting.discard(key)
        if key in self._dirty:
            self._unserved_since.setdefault(key, self._dirty.pop(key))
            self.add(key)

    def age(self, key: K) -> float:
        """Return the seconds since the oldest unserved event of a key that a worker has."""
        return self._clock() - self._unserved_since[key]

    def oldest(self) -> float:
        """Return the seconds for which the oldest key has been queued or processing; 0: idle."""
        now, lanes = self._clock(), (self._lane, self._low_lane)
        return now - min(now, *(lane.oldest for lane in lanes), *self._processing.values())

    def stuck(self) -> float:
        """Return the seconds for which a worker has had a key, or no worker has taken a queued one.

        A key may be queued for longer, because it waits for its turn.
        """
        now, lanes = self._clock(), (self._lane, self._low_lane)
        untaken_since = max(self._taken_at, min(lane.oldest for lane in lanes))
        return now - min(now, untaken_since, *self._processing.values())

    def __len__(self) -> int:
        resting = len(self._resting & self._dirty.keys())
        return len(self._lane) + len(self._low_lane) + len(self._processing) + resting
