"""Decisions for large jobs, which run in a thread, because they take up to half a second."""

import asyncio
from collections.abc import Callable

from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.engine.run import garbage

LARGE_JOB = 200
"""Replicas or pods above which a job is decided in a thread: five thousand take half a second."""


class Decider:
    """Makes decisions, those for large jobs one after the other."""

    def __init__(self) -> None:
        self._large = asyncio.Lock()

    async def compute(
        self, observe: Callable[[], Callable[[], decision.Decision]], size: int
    ) -> decision.Decision:
        """Decide for a job, in a thread if it is large.

        A decision is a pure function of immutable values, so it may run in a thread.

        Args:
            observe: binds the decision to the newest observation, when its turn has come.
            size: of the job, in replicas or pods.
        """
        if size <= LARGE_JOB:
            return observe()()
        async with self._large:  # Several threads would compete for the interpreter's lock.
            return await asyncio.to_thread(
                garbage.call_without_collection, observe(), _creates_many
            )


def find_size(job: Layout | observation.InvalidJob, children: observation.Children) -> int:
    """Count the replicas that a job asks for, or the pods that it has, if these are more."""
    layout = job.accepted if isinstance(job, observation.InvalidJob) else job
    requested = 0 if layout is None else sum(layout.counts.values())
    return max(requested, len(children.pods))


def _creates_many(decided: decision.Decision) -> bool:
    return len(decided.creations) > LARGE_JOB
