"""What the engine remembers of each job between two looks: one value by key, with one `forget`.

An operator that starts again remembers nothing, and finds it all once more.
"""

import dataclasses
import datetime

from tfparallel_operator.api import types
from tfparallel_operator.core.pods import restrictions
from tfparallel_operator.engine.workqueue import queue, timers


@dataclasses.dataclass(slots=True)
class Search:
    """The search for why the pods of a role wait."""

    uid: str
    """Of the pod that says why, or that the next look is for."""
    next_look: datetime.datetime
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """Until when nothing is created for a job, and for which generation of its spec."""

    until: datetime.datetime
    generation: int


@dataclasses.dataclass(slots=True)
class JobMemory:
    """What is remembered of one job."""

    backoff: timers.Backoff = dataclasses.field(default_factory=timers.Backoff)
    """Looks that failed, and creations that were refused, in a row."""
    pause: Pause | None = None
    """After a refusal; None: the last creation was not refused."""
    valid_spec: tuple[str, int] | None = None
    """Uid and generation of the job when its spec was found to be valid."""
    accepted_spec: tuple[str, bytes] | None = None
    """Uid and compressed record of the last valid spec, if the newest is of no use."""
    uses: tuple[tuple[str, int], tuple[restrictions.Use, ...]] | None = None
    """Uid and generation of the job, and what its pods use."""
    searches: dict[types.Role, Search] = dataclasses.field(default_factory=dict)
    """The searches for why pods wait, by their role."""


class JobMemories:
    """The memory of each job."""

    def __init__(self) -> None:
        self._by_key: dict[queue.Key, JobMemory] = {}

    def recall(self, key: queue.Key) -> JobMemory:
        """Return the memory of a job, which is empty at first."""
        return self._by_key.setdefault(key, JobMemory())

    def forget(self, key: queue.Key) -> JobMemory:
        """Drop the memory of a job that is gone, and return it."""
        return self._by_key.pop(key, None) or JobMemory()

    def forget_generations(self) -> None:
        """Drop what holds for a generation: a restore of etcd gives its number again."""
        for memory in self._by_key.values():
            memory.pause = memory.valid_spec = memory.accepted_spec = memory.uses = None
