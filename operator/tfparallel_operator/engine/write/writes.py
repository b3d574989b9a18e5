"""Results of writes for a job, and concurrent writes."""

import asyncio
import collections
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tfparallel_operator.api import names
from tfparallel_operator.api_server import errors
from tfparallel_operator.core import observation
from tfparallel_operator.core.life import obstacles

T = TypeVar("T")

MAX_WRITES = 16
"""Maximum number of concurrent writes for a job."""


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyResult:
    """How much of a decision was carried out."""

    refusal: observation.Refusal | None = None
    """Why the API server refused a creation. Later creations were not tried."""
    retry_after: float | None = None
    """Seconds after which the API server allows a retry."""
    holders: tuple[obstacles.Holder, ...] = ()
    """Other objects that have names that the job needs."""
    started: bool = False
    """Whether everything was created and the next reconcile writes the status."""

    @property
    def is_blocked(self) -> bool:
        """Whether the job waits for an object that is being deleted."""
        passes = (names.Reason.NAME_HELD, names.Reason.DELETION_STUCK)
        return self.refusal is not None and self.refusal.reason in passes


DONE = ApplyResult()
STARTED = ApplyResult(started=True)


async def run_at_once(
    do: Callable[[T], Awaitable[ApplyResult]], items: Sequence[T], *, on_all: bool = False
) -> list[ApplyResult | Exception]:
    """Process items concurrently, `MAX_WRITES` at a time, and return their results.

    After the first failure no more items start, unless `on_all` is true.
    """
    remaining = collections.deque(items)
    outcomes: list[ApplyResult | Exception] = []

    async def attempt(item: T) -> ApplyResult | Exception:
        try:
            return await do(item)
        except Exception as error:  # `find_worst` raises the worst error.
            return error

    async def work() -> None:
        while remaining:
            outcomes.append(await attempt(remaining.popleft()))
            if outcomes[-1] != DONE and not on_all:
                remaining.clear()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(MAX_WRITES, len(items))):
            group.create_task(work())
    return outcomes


def find_worst(outcomes: Sequence[ApplyResult | Exception]) -> ApplyResult:
    """Return or raise the most severe: bug, final refusal, other refusal, API error, taken name."""
    worst = min(outcomes, key=_rank, default=DONE)
    if not isinstance(worst, Exception):
        return worst
    try:
        raise worst
    finally:
        # A cycle of error and traceback would keep all manifests until the next collection.
        del worst, outcomes


def _rank(outcome: ApplyResult | Exception) -> int:
    if isinstance(outcome, Exception):
        return 3 if isinstance(outcome, errors.ApiError) else 0
    if outcome.refusal is not None:
        return 1 if outcome.refusal.final else 2
    return 4 if outcome.holders else 5
