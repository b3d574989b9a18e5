"""The engine's memory of each job between reconciles: one value by key, with one `forget`.

A new operator process starts without it, and finds everything again.
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
    """The pod that says why, or that the next search looks at."""
    next_look: datetime.datetime
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the creations for a job, and the generation of the spec to which it applies."""

    until: datetime.datetime
    generation: int


@dataclasses.dataclass(slots=True)
class JobMemory:
    """The memory of one job."""

    backoff: timers.Backoff = dataclasses.field(default_factory=timers.Backoff)
    """Consecutive failed reconciles and refused creations."""
    pause: Pause | None = None
    """The pause after a refusal; None: the last creation was not refused."""
    valid_spec: tuple[str, int] | None = None
    """Uid and generation of the job when its spec was found to be valid."""
    accepted_spec: tuple[str, bytes] | None = None
    """Uid and compressed record of the last valid spec, if the newest one is unusable."""
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
        """Remove the memory of a job that no longer exists, and return it."""
        return self._by_key.pop(key, None) or JobMemory()

    def forget_generations(self) -> None:
        """Forget facts about generations, whose numbers come again after a restore of etcd."""
        for memory in self._by_key.values():
            memory.pause = memory.valid_spec = memory.accepted_spec = memory.uses = None
