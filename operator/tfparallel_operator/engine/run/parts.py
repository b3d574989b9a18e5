"""The operator's parts: tasks that run forever, each of which restarts after a failure.

The failure of a part, for example by a bug that one object triggers, doesn't affect the others.
A group fails with a part only if the part cannot start at all, for example without its port.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

_LOG = logging.getLogger(__name__)

PAUSES_SECONDS = (1.0, 60.0)
"""Shortest and longest pause before a part restarts."""

CALM_SECONDS = 120.0
"""Time without a failure after which a part counts as healthy."""

MANY_FAILURES = 3
"""Consecutive failures after which the readiness probe names the part."""


class MemberEnded(Exception):  # noqa: N818 (what has happened)
    """A task that should run forever has returned."""


@dataclasses.dataclass
class _PartHealth:
    failures: int = 0
    begun_at: float = 0.0
    error: str = ""


class Parts:
    """Starts parts, and restarts each after a failure.

    Args:
        count: called with the name of a part that failed.
        clock: in seconds.
    """

    def __init__(
        self, count: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._clock = clock
        self._records: dict[str, _PartHealth] = {}

    def start(
        self,
        group: asyncio.TaskGroup,
        name: str,
        run: Callable[[], Awaitable[None]],
        needs: type[Exception] | None = None,
    ) -> None:
        """Start a part.

        Args:
            group: the group of the part's task.
            name: shown in logs, metrics and the readiness probe.
            run: runs the part forever.
            needs: an error that, in the first run, means that the part cannot start at all.
        """
        record = self._records[name] = _PartHealth(begun_at=self._clock())
        group.create_task(self._run(name, record, run, needs), name=name)

    def problem(self) -> str:
        """Say which part keeps failing; empty: none does."""
        for name, record in self._records.items():
            is_calm = self._clock() - record.begun_at > CALM_SECONDS
            if record.failures >= MANY_FAILURES and not is_calm:
                return (
                    f"the part {name!r} has failed {record.failures} times in a row: {record.error}"
                )
        return ""

    async def _run(
        self,
        name: str,
        record: _PartHealth,
        run: Callable[[], Awaitable[None]],
        needs: type[Exception] | None,
    ) -> None:
        while True:
            record.begun_at = self._clock()
            try:
                await run()
                raise MemberEnded(f"the part {name!r} has ended, which it never should")
            except Exception as error:
                if needs is not None and isinstance(error, needs) and not record.failures:
                    raise
                pause = self._pause_after(record, error)
                _LOG.exception("the part %r failed; it begins again in %.0f s", name, pause)
                self._count(name)
                await asyncio.sleep(pause)

    def _pause_after(self, record: _PartHealth, error: Exception) -> float:
        if self._clock() - record.begun_at > CALM_SECONDS:
            record.failures = 0
        record.failures += 1
        record.error = f"{type(error).__name__}: {error}"[:200]
        shortest, longest = PAUSES_SECONDS
        return min(longest, shortest * 2.0 ** (record.failures - 1))


def spawn(group: asyncio.TaskGroup, name: str, member: Coroutine[Any, Any, None]) -> None:
    """Start a task that should run forever. If it fails or returns, the group fails."""

    async def run() -> None:
        await member
        raise MemberEnded(f"the operator's part {name!r} has ended, which it never should")

    group.create_task(run(), name=name)
