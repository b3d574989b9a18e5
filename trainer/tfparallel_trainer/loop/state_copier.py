"""Copies the state in memory, at steps that it chooses so that copies take 1 % of the time."""

import contextlib
import time
from collections.abc import Callable, Iterator

from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.loop import checkpoint_writer

SHARE = 0.01
"""Share of the time that copies may take."""

_TRIALS = 2
"""Copies after the first steps. The first one traces the barrier, so the second one is timed."""


class StateCopier:
    """Copies the state of this process. One process decides for all after which steps."""

    def __init__(
        self,
        copy: Callable[[files.Position], Callable[[], None]] | None = None,
        *,
        exchange: Callable[[], object] = lambda: None,
        decides: bool = False,
        barrier: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Begin without a copy.

        Args:
            copy: copies the state now; returns a function that completes the copy while training
                continues. None: this process makes no copies.
            exchange: sends the complete copy to another process, while training continues.
            decides: whether this process requests copies.
            barrier: returns once all processes that have parts of the state have called it.
            clock: returns seconds.
            cpu_clock: returns the CPU seconds of the current thread.
        """
        self._copy = copy
        self._exchange = exchange
        self._decides = decides
        self._barrier = barrier
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._completing = checkpoint_writer.CheckpointWriter()
        self._count = 0
        self._ended = 0.0
        self._pause_seconds = self._completion_seconds = self._exchange_seconds = 0.0

    @property
    def due(self) -> bool:
        """Whether this process requests a copy, of which all processes learn with the next step."""
        if not self._decides or self._completing.is_busy:
            return False
        if self._count < _TRIALS:
            return True
        cost = self._pause_seconds + self._completion_seconds + self._exchange_seconds
        return self._clock() - self._ended >= cost * (1 / SHARE - 1)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Take the time of the body, in which training pauses for a copy, as its cost."""
        began = self._clock()
        yield
        self._ended = self._clock()
        self._pause_seconds = self._ended - began
        self._count += 1

    def copy(self, at: files.Position) -> None:
        """Copy the state, which is that of a position."""
        if self._copy is None:
            return
        self.wait()
        self._complete(self._copy(at), self._timed_exchange)

    def complete(self, complete: Callable[[], None]) -> None:
        """Complete a copy of this process in a thread of its own; no other process gets it."""
        self._complete(complete, lambda: None)

    def wait(self) -> None:
        """Return when the last copy is complete everywhere: no process needs an older one."""
        if self._copy is not None:
            self._completing.wait()
            self._barrier()

    def _complete(self, complete: Callable[[], None], exchange: Callable[[], None]) -> None:
        def run() -> None:
            began = self._cpu_clock()
            complete()
            self._completion_seconds = self._cpu_clock() - began
            exchange()

        self._completing.start(run)

    def _timed_exchange(self) -> None:
        """Send the copy. TensorFlow's threads do it, so all of its time counts."""
        began = self._clock()
        self._exchange()
        self._exchange_seconds = self._clock() - began

    def postpone(self) -> None:
        """Count from now on: a checkpoint has copied the state."""
        self._ended = self._clock()
