"""An event loop in a separate thread, for blocking calls."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

from tfparallel.backend import Backend

T = TypeVar("T")

_AHEAD = 1000
"""Maximum number of items of a stream that wait for the caller.

If nobody reads a log, it is not fetched further.
"""

_CLOSE_SECONDS = 5.0
"""How long the end of the interpreter waits for a connection to close."""


class LoopThread:
    """An event loop in a thread, and the backend whose connection it closes at the end."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tfparallel-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def connect(self, backend: Backend) -> None:
        """Connect a backend, which `stop` disconnects."""
        self.call(backend.__aenter__())
        self._backend = backend

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns; Ctrl-C in the caller cancels it.

        Raises:
            RuntimeError: the client is closed.
        """
        return _result(self._submit(coroutine))

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("this client is closed: create another TrainerClient")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stream(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield what an asynchronous generator yields; one task runs it to its end."""
        queue: asyncio.Queue[tuple[T] | None] = asyncio.Queue(maxsize=_AHEAD)

        async def pump() -> None:
            try:
                async with contextlib.aclosing(items):
                    async for item in items:
                        await queue.put((item,))
            except Exception:
                await queue.put(None)
                raise
            await queue.put(None)

        async def take() -> list[tuple[T] | None]:
            """Wait for an item, and take what is there besides: each change of threads costs."""
            return [await queue.get(), *(queue.get_nowait() for _ in range(queue.qsize()))]

        pumping = self._submit(pump())
        try:
            while True:
                for item in self.call(take()):
                    if item is None:
                        _result(pumping)
                        return
                    yield item[0]
        finally:
            pumping.cancel()

    def stop(self) -> None:
        """Close the connection and end the thread; waits, unless the thread itself calls it."""
        if self._loop.is_closed():
            return

        async def close() -> None:
            try:
                if self._backend is not None:
                    await self._backend.__aexit__(None, None, None)
            finally:
                self._loop.stop()

        asyncio.run_coroutine_threadsafe(close(), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)


def _result(future: "concurrent.futures.Future[T]") -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
