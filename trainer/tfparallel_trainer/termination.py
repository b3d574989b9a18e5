"""SIGTERM and SIGINT: training ends at an agreed step, or at once where that is not possible.

A Python signal handler cannot run while the main thread is inside a TensorFlow operation, so a
thread is told of the signal through a pipe and ends the process when the main thread does not.
"""

import os
import signal
import threading
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Termination:
    """Whether this process was asked to end, and how long it may take."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        """Args: give_up: ends the process; called from another thread."""
        self._give_up = give_up
        self._grace = 0.0
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._pipe: tuple[int, int] | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self._asked.is_set()

    def install(self) -> None:
        """Listen to the signals, in the main thread; again after TensorFlow has taken them."""
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            threading.Thread(target=self._watch, name="signals", daemon=True).start()
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)

    def allow(self, seconds: float) -> None:
        """From now on give the main thread this long to end in order after a signal."""
        self._grace = seconds

    def end(self) -> None:
        """The run is over: a signal no longer changes how."""
        self._ended.set()

    def _watch(self) -> None:
        if self._pipe is None:
            return
        os.read(self._pipe[0], 1)
        self._asked.set()
        if not self._ended.wait(self._grace):
            self._give_up()
