"""A client whose process dies after some write: the write is done, nobody hears the answer."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from testing.operator import wrapped_api
from tfparallel_operator.api_server import client

T = TypeVar("T")


class Killed(BaseException):
    """The process is gone; nothing in it may catch this."""


class CrashingApi(wrapped_api.WrappedApi):
    """Passes everything on until its last write; after that nothing.

    Counted are the writes whose verb and path begin and end so: all, or those of a status.
    """

    def __init__(
        self, inner: client.Client, writes: int | None, begin: str = "", end: str = ""
    ) -> None:
        super().__init__(inner)
        self._left = writes
        self._begin = begin
        self._end = end

    async def _read(self, do: Callable[[], Awaitable[T]]) -> T:
        self._alive()
        return await do()

    async def _write(self, request: str, do: Callable[[], Awaitable[T]]) -> T:
        self._alive()
        answer = await do()
        counted = request.startswith(self._begin) and request.endswith(self._end)
        if self._left is not None and counted:
            # Writes that were under way together with the last one are done, but not heard of.
            self._left = max(0, self._left - 1)
            if not self._left:
                raise Killed
        return answer

    def _alive(self) -> None:
        if self._left == 0:
            raise Killed
