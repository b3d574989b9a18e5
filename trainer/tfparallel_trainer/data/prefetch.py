"""Prepares the next batches while a step runs, in a thread of its own.

Order and position are those of the batches that are handed out, so a checkpoint knows nothing of
what is prepared. The user's data function runs in the thread that asks for an epoch; only what
reads, converts and cuts examples runs here.
"""

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Generator
from typing import Any

from tfparallel_trainer.data import feed

BATCHES = 2
"""How many batches may be ready and not asked for yet."""

_LEAVE_SECONDS = 2.0
"""How long the end of an epoch waits for a batch that nobody wants any more."""


class PrefetchFeed:
    """A feed whose batches are prepared before they are asked for."""

    def __init__(self, inner: feed.Feed) -> None:
        self._inner = inner

    @property
    def examples(self) -> int | None:
        """Examples in an epoch, where the inner feed knows."""
        return self._inner.examples

    @property
    def spec(self) -> Any:
        """The structure of a part, as tf.TensorSpec [None, …]."""
        return self._inner.spec

    def sample(self) -> Any:
        """One example as (x, y, sample_weight), each with a leading axis of 1."""
        return self._inner.sample()

    def epoch(self, number: int, start: int) -> Generator[feed.Batch, None, None]:
        """The batches of an epoch from the example at position `start` on."""
        return prefetched(self._inner.epoch(number, start))


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """What comes after the last batch."""

    error: BaseException | None


def prefetched(batches: Generator[feed.Batch, None, None]) -> Generator[feed.Batch, None, None]:
    """Go through batches that are prepared ahead; closing this ends the thread.

    An error of the batches comes where the batch would have come, with its own traceback.
    """
    room = threading.Semaphore(BATCHES)
    ready: queue.SimpleQueue[feed.Batch | _End] = queue.SimpleQueue()
    leaving = threading.Event()

    def prepare() -> None:
        error = None
        try:
            with contextlib.closing(batches):
                while room.acquire() and not leaving.is_set():
                    ready.put(next(batches))
        except StopIteration:
            pass
        except BaseException as caught:  # also SystemExit of the user's code
            error = caught
        ready.put(_End(error))

    thread = threading.Thread(target=prepare, name="input", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        leaving.set()
        room.release()
        thread.join(_LEAVE_SECONDS)
