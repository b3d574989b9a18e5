"""How a process ends: by its own error or a signal, at an agreed step or at once.

A Python signal handler cannot run while the main thread is inside a TensorFlow operation. So a
thread reads SIGTERM and SIGINT from a pipe, and ends the process when the main thread does not.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

from tfparallel_trainer import errors
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.lifecycle import farewells
from tfparallel_trainer.reporting import console

LATE = "Asked to end, at a moment when no step is made."

STEP_SECONDS = 6.0
"""How long the main thread may take to reach the end of a step after a signal. Peers that notice
only then that this process is gone end within ten seconds of it too."""

_LEAVE_SECONDS = 5.0
"""Seconds before SIGKILL that are reserved for an orderly exit."""

_LEAVE_SHARE = 1 / 6
"""Share of the time that is reserved instead, if that is less."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS = 0.2


class Termination:
    """Whether this process has received a signal to exit, and how long it may take."""

    def __init__(self, give_up: Callable[[], None], grace_seconds: float) -> None:
        """End by `give_up`, from another thread, before the process is killed after the grace."""
        self._give_up = give_up
        self._longest = grace_seconds - min(_LEAVE_SECONDS, _LEAVE_SHARE * grace_seconds)
        self._grace = 0.0
        self._saves = 0
        """How many bodies save at the moment."""
        self._changing = threading.RLock()
        self._asked_at: float | None = None
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self._asked.is_set()

    def install(self) -> None:
        """Listen to the signals, in the main thread; again after TensorFlow has taken them."""
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            self._thread.start()
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)

    def allow(self, seconds: float) -> None:
        """Give the main thread so long after a signal, also one that came, if it is not killed."""
        with self._changing:
            self._grace = min(seconds, self._longest)

    def allow_save(self) -> None:
        """Give the main thread all the time that a save may take."""
        self.allow(self._longest)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Give the body the time of a save, and after it the main thread what it had before.

        Several threads may save at once.
        """
        with self._changing:
            self._saves += 1
        try:
            yield
        finally:
            with self._changing:
                self._saves -= 1
                self.allow(self._grace + self._since_asked)

    def end(self) -> None:
        """Record that the run is over. A signal no longer changes how it ends."""
        self._ended.set()

    def close(self) -> None:
        """End the thread and close the pipe, once Python writes signals elsewhere."""
        self.end()
        if self._pipe is None:
            return
        with contextlib.suppress(BlockingIOError):  # the pipe is full of signals
            os.write(self._pipe[1], b"\0")
        self._thread.join()
        for descriptor in self._pipe:
            os.close(descriptor)
        self._pipe = None

    @property
    def _limit(self) -> float:
        """How many seconds the main thread has after a signal."""
        return self._longest if self._saves else self._grace

    @property
    def _since_asked(self) -> float:
        """Seconds; none before."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    def _watch(self) -> None:
        if self._pipe is None:
            return
        os.read(self._pipe[0], 1)
        if self._ended.is_set():
            return
        self._asked_at = time.monotonic()
        self._asked.set()
        while self._since_asked < self._limit:
            if self._ended.wait(_LOOK_SECONDS):
                return
        if not self._ended.is_set():
            self._give_up()


def exit_of(out: console.Console, error: Exception, program: str) -> exits.Exit:
    """Write the error with which a program ends, and return its exit code."""
    if isinstance(error, errors.TrainerError):
        out.fail(str(error), error.trace if isinstance(error, errors.UserCodeError) else "")
        is_final = os.environ.get(environment.FULL_DISK_IS_FINAL) == "1"
        is_full = error.exit is exits.Exit.STORAGE_FAILED and _is_from_full_disk(error)
        return exits.Exit.BAD_CONFIGURATION if is_full and is_final else error.exit
    trace = "".join(traceback.format_exception(error))
    out.fail(f"the {program} failed, please report this", trace)
    return exits.Exit.INTERNAL_ERROR


def _is_from_full_disk(error: BaseException) -> bool:
    """Whether a failed write, of Python or TensorFlow, found no space."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return any(
        getattr(cause, "errno", None) in full or os.strerror(errno.ENOSPC) in str(cause)
        for cause in errors.causes(error)
    )


def give_up(out: console.Console, error: errors.TrainerError) -> None:
    """End the process with an error, from any thread, without waiting for the main one."""
    end(exit_of(out, error, "trainer"))


def end(code: int) -> NoReturn:
    """End the process at once: TensorFlow's threads may wait for peers that are gone."""
    farewells.say()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
