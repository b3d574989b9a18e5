"""What becomes of writes for one job, and several of them at once."""

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
"""Writes for one job at the same time."""


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyResult:
    """How far a decision was carried out."""

    refusal: observation.Refusal | None = None
    """Why the API server refused a create; those after it were not tried."""
    retry_after: float | None = None
    """Seconds after which the API server wants to be asked again."""
    holders: tuple[obstacles.Holder, ...] = ()
    """Objects that have names which the job needs."""
    started: bool = False
    """Whether all was created, and the status is left to the next look."""

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
    """Do something for every item, a bounded number at a time; return what became of each.

    After the first that is not done, nothing more starts, unless it is to be done `on_all`.
    """
    remaining = collections.deque(items)
    outcomes: list[ApplyResult | Exception] = []

    async def attempt(item: T) -> ApplyResult | Exception:
        try:
            return await do(item)
        except Exception as error:  # The worst of all is raised in the end.
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
    """Return or raise what matters most: a bug, a refusal for good or for now, an error, a name."""
    worst = min(outcomes, key=_rank, default=DONE)
    if not isinstance(worst, Exception):
        return worst
    try:
        raise worst
    finally:
        # An error whose traceback names it would keep all manifests of a large job until a search.
        del worst, outcomes


def _rank(outcome: ApplyResult | Exception) -> int:
    if isinstance(outcome, Exception):
        return 3 if isinstance(outcome, errors.ApiError) else 0
    if outcome.refusal is not None:
        return 1 if outcome.refusal.final else 2
    return 4 if outcome.holders else 5
