"""Writes checkpoints in a thread of its own, one at a time, while training continues."""

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class CheckpointWriter:
    """Does one write at a time; the main thread learns at its next step how it ended."""

    def __init__(
        self, open_wait: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    ) -> None:
        """Take what is open while the main thread waits for a write."""
        self._open_wait = open_wait
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def error(self) -> Exception | None:
        """What has ended a write, until `wait` raises it."""
        return self._error

    def start(self, write: Callable[[], None]) -> None:
        """Begin a write; none may be under way."""
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when no write is under way, or raise what has ended it."""
        if self._thread is not None:
            with self._open_wait():
                self.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def join(self, seconds: float | None = None) -> None:
        """Wait for the write, perhaps for so long at most; `error` says how it ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            self._error = error
