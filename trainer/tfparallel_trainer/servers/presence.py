"""Tells when workers leave and come back; training goes on with those that are there."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.mesh import tasks, watch

_INTERVAL_SECONDS = 1.0


@contextlib.contextmanager
def told(
    workers: Sequence[tasks.Task],
    limit: float,
    say: Callable[[str], None],
    give_up: Callable[[errors.TrainerError], None],
) -> Iterator[None]:
    """Look at workers while the body runs, from a thread.

    Args:
        workers: whom to look at.
        limit: how many seconds all of them may be gone.
        say: writes a line for people.
        give_up: ends the process.
    """
    over = threading.Event()

    def look() -> None:
        absent: set[tasks.Task] = set()
        seen_at = time.monotonic()
        while not over.wait(_INTERVAL_SECONDS):
            before, absent = absent, {worker for worker in workers if watch.refuses(worker)}
            for worker in workers:
                if worker in absent - before:
                    say(f"{worker.name} is gone ({worker.address}); it may come back there")
                if worker in before - absent:
                    say(f"{worker.name} is back")
            if len(absent) < len(workers):
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > limit:
                give_up(_all_gone(limit))

    threading.Thread(target=look, name="workers", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _all_gone(limit: float) -> errors.PeerLostError:
    return errors.PeerLostError(
        f"A peer was lost: no worker has been there for {limit:g} s (startTimeoutSeconds)."
    )
