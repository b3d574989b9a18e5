"""Ends a process whose training no longer moves, after showing where every thread stands.

A thread of its own watches, since the main thread is the one that is stuck: in a collective whose
peer does not come, in the user's data function, or on a disk that does not answer.
"""

import contextlib
import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from tfparallel_trainer import errors

_LOOKS = 20
"""How often a limit is looked at before it is over."""


LOCKED_SECONDS = 60.0
"""How much longer a process may take that does not even let this thread run."""


class Watch:
    """What the main thread tells of its moves."""

    def __init__(self) -> None:
        self._last = (time.monotonic(), "training began")

    def moved(self, what: str) -> None:
        """Tell that something ended, such as "step 7"."""
        self._last = time.monotonic(), what

    @property
    def still(self) -> tuple[float, str]:
        """For how many seconds nothing ended, and what ended last."""
        since, what = self._last
        return time.monotonic() - since, what


@contextlib.contextmanager
def watching(
    limit: float, give_up: Callable[[errors.TrainerError], None], stream: TextIO = sys.stderr
) -> Iterator[Watch]:
    """Watch while the body runs.

    Args:
        limit: seconds without a move after which the process is ended.
        give_up: ends the process; called from another thread.
        stream: where the stacks are written to; a real file.
    """
    watch = Watch()
    over = threading.Event()

    def postpone() -> None:
        # TensorFlow may wait for a peer with Python's lock in its hand: this timer needs no lock.
        faulthandler.dump_traceback_later(limit + LOCKED_SECONDS, exit=True, file=stream)

    def look() -> None:
        while not over.wait(limit / _LOOKS):
            postpone()
            seconds, what = watch.still
            if seconds >= limit:
                faulthandler.dump_traceback(stream, all_threads=True)
                give_up(
                    errors.StalledError(
                        f"Nothing has ended for {seconds:.0f} s (trainer.stepTimeoutSeconds) since "
                        f"{what}: the stacks of all threads stand above. See whether another "
                        "replica or the data is stuck, or give a step more time."
                    )
                )
                return

    postpone()
    threading.Thread(target=look, name="stall", daemon=True).start()
    try:
        yield watch
    finally:
        over.set()
        faulthandler.cancel_dump_traceback_later()
