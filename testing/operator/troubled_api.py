"""A client whose writes meet the API server's troubles: each of them once, then they succeed."""

import asyncio
import collections
import enum
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from testing.operator import wrapped_api
from tfparallel_operator.api_server import client, errors

T = TypeVar("T")

LONGEST_TURNS = 12
"""Turns of the event loop that a slow answer takes."""


class Trouble(enum.Enum):
    """What becomes of a write."""

    FAILS = "500 instead of the write"
    UNHEARD = "the write is done, and the answer is lost"
    BUSY = "429 with Retry-After"
    CONFLICT = "409 for an object that nobody has changed"
    SLOW = "requests and answers take their time, and overtake each other"


class TroubledApi(wrapped_api.WrappedApi):
    """Every second time that something is written, it meets trouble; `SLOW` meets everything."""

    def __init__(self, inner: client.Client, trouble: Trouble | None) -> None:
        super().__init__(inner)
        self._trouble = trouble
        self._times: collections.Counter[str] = collections.Counter()
        self._random = random.Random(7)  # noqa: S311 (no secret)
        self.met = 0
        """Requests that met trouble so far."""

    async def _read(self, do: Callable[[], Awaitable[T]]) -> T:
        return await self._slowly(do) if self._trouble is Trouble.SLOW else await do()

    async def _write(self, request: str, do: Callable[[], Awaitable[T]]) -> T:
        if self._trouble is None:
            return await do()
        if self._trouble is Trouble.SLOW:
            return await self._slowly(do)
        self._times[request] += 1
        if self._times[request] % 2 == 0:
            return await do()
        self.met += 1
        match self._trouble:
            case Trouble.BUSY:
                raise errors.Unavailable("too many requests", status=429, retry_after=1)
            case Trouble.CONFLICT:
                if request.startswith("delete "):
                    return await do()  # Its condition is a uid: a conflict there is always true.
                raise errors.Conflict("the object has been modified", status=409)
            case Trouble.UNHEARD:
                await do()
        raise errors.Unavailable("internal error", status=500)

    async def _slowly(self, do: Callable[[], Awaitable[T]]) -> T:
        self.met += 1
        for _ in range(self._random.randrange(LONGEST_TURNS)):
            await asyncio.sleep(0)
        answer = await do()
        for _ in range(self._random.randrange(LONGEST_TURNS)):
            await asyncio.sleep(0)
        return answer
