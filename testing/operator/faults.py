"""Faults that requests meet on their way to an API server, a real one or one in memory."""

import asyncio
import collections
import enum
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tfparallel_operator.api_server import client, credentials, errors, lists, resources, streams

T = TypeVar("T")
Send = Callable[[], Awaitable[T]]

LONGEST_TURNS = 12
"""Turns of the event loop that a slow answer takes."""


class Fault:
    """Lets every request through. A request is its verb and its path: `patch /apis/…/status`."""

    async def read(self, request: str, send: Send[T]) -> T:
        return await send()

    async def write(self, request: str, send: Send[T]) -> T:
        return await send()


class Refusal(Fault):
    """An error instead of requests that match a pattern: for the next ones, or for all."""

    def __init__(
        self,
        pattern: str,
        error: Exception | Callable[[str], Exception] | None = None,
        following: Sequence[Exception] = (),
    ) -> None:
        self.error = error
        """For each request, while it is set."""
        self.following = list(following)
        """For as many requests as there are, each once."""
        self.count = 0
        """Requests that were refused."""
        self._pattern = re.compile(pattern)

    async def read(self, request: str, send: Send[T]) -> T:
        return await self.write(request, send)

    async def write(self, request: str, send: Send[T]) -> T:
        if not self._pattern.search(request) or not (self.following or self.error):
            return await send()
        self.count += 1
        error = self.following.pop(0) if self.following else self.error
        assert error is not None
        raise error if isinstance(error, Exception) else error(request)


class Killed(BaseException):
    """The process is gone; nothing in it may catch this."""


class Crash(Fault):
    """The process dies after its last write: the write is done, and nobody hears the answer.

    Counted are the writes whose verb and path begin and end so: all, or those of a status.
    """

    def __init__(self, writes: int | None, begin: str = "", end: str = "") -> None:
        self._left = writes
        self._begin = begin
        self._end = end

    async def read(self, request: str, send: Send[T]) -> T:
        self._check_alive()
        return await send()

    async def write(self, request: str, send: Send[T]) -> T:
        self._check_alive()
        answer = await send()
        counted = request.startswith(self._begin) and request.endswith(self._end)
        if self._left is not None and counted:
            # Writes that were under way together with the last one are done, but not heard of.
            self._left = max(0, self._left - 1)
            if not self._left:
                raise Killed
        return answer

    def _check_alive(self) -> None:
        if self._left == 0:
            raise Killed


class Trouble(enum.Enum):
    """What becomes of a write."""

    FAILS = "500 instead of the write"
    UNHEARD = "the write is done, and the answer is lost"
    BUSY = "429 with Retry-After"
    CONFLICT = "409 for an object that nobody has changed"
    SLOW = "requests and answers take their time, and overtake each other"


class EverySecondWrite(Fault):
    """Every second time that something is written, it meets trouble; `SLOW` meets everything."""

    def __init__(self, trouble: Trouble | None) -> None:
        self._trouble = trouble
        self._times: collections.Counter[str] = collections.Counter()
        self._random = random.Random(7)  # noqa: S311 (no secret)
        self.count = 0
        """Requests that met trouble so far."""

    async def read(self, request: str, send: Send[T]) -> T:
        return await self._delay(send) if self._trouble is Trouble.SLOW else await send()

    async def write(self, request: str, send: Send[T]) -> T:
        if self._trouble is None:
            return await send()
        if self._trouble is Trouble.SLOW:
            return await self._delay(send)
        self._times[request] += 1
        if self._times[request] % 2 == 0:
            return await send()
        self.count += 1
        match self._trouble:
            case Trouble.BUSY:
                raise errors.Unavailable("too many requests", status=429, retry_after=1)
            case Trouble.CONFLICT:
                if request.startswith("delete "):
                    return await send()  # Its condition is a uid: a conflict there is always true.
                raise errors.Conflict("the object has been modified", status=409)
            case Trouble.UNHEARD:
                await send()
        raise errors.Unavailable("internal error", status=500)

    async def _delay(self, send: Send[T]) -> T:
        self.count += 1
        for _ in range(self._random.randrange(LONGEST_TURNS)):
            await asyncio.sleep(0)
        answer = await send()
        for _ in range(self._random.randrange(LONGEST_TURNS)):
            await asyncio.sleep(0)
        return answer


class FaultyApi(client.Client):
    """A client around another one, whose requests meet a fault; watches pass."""

    def __init__(self, inner: client.Client, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault

    @property
    def access(self) -> credentials.Access:
        return self._inner.access

    async def get(self, path: str, **more: Any) -> client.Object:
        return await self._fault.read(f"get {path}", lambda: self._inner.get(path, **more))

    async def page(
        self, resource: resources.Resource, namespace: str | None, *arguments: Any, **more: Any
    ) -> lists.Listing:
        return await self._fault.read(
            f"list {resource.path(namespace)}",
            lambda: self._inner.page(resource, namespace, *arguments, **more),
        )

    async def watch(self, *arguments: Any, **more: Any) -> AsyncIterator[streams.WatchEvent]:
        async for event in self._inner.watch(*arguments, **more):
            yield event

    async def create(
        self,
        resource: resources.Resource,
        namespace: str | None,
        manifest: Mapping[str, Any],
        **more: Any,
    ) -> client.Object:
        return await self._fault.write(
            f"create {resource.path(namespace, manifest['metadata'].get('name', ''))}",
            lambda: self._inner.create(resource, namespace, manifest, **more),
        )

    async def delete(
        self, resource: resources.Resource, namespace: str, name: str, *arguments: Any, **more: Any
    ) -> None:
        await self._fault.write(
            f"delete {resource.path(namespace, name)}",
            lambda: self._inner.delete(resource, namespace, name, *arguments, **more),
        )

    async def patch(self, path: str, *arguments: Any) -> client.Object:
        return await self._fault.write(f"patch {path}", lambda: self._inner.patch(path, *arguments))

    async def apply(self, path: str, *arguments: Any) -> client.Object:
        return await self._fault.write(f"apply {path}", lambda: self._inner.apply(path, *arguments))
