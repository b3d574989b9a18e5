"""The feed of all engines: batches that are divided over ranks, from a source of them.

A thread prepares the next batches while a step runs, and what a step waits for them is measured.
"""

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Generator
from typing import Any

from tfparallel_trainer.data import batch_division
from tfparallel_trainer.reporting import input_wait

BATCHES = 2
"""Maximum number of batches that are ready but not requested yet, where steps are single."""

_LEAVE_SECONDS = 2.0
"""How long the end of an epoch waits for a batch that is no longer needed."""


@dataclasses.dataclass(frozen=True, slots=True)
class FeedPosition:
    """The position of a feed: the end of the batches that it has delivered."""

    epoch: int = 0
    example: int = 0
    """Number of examples of the epoch that have been delivered."""


class Feed:
    """The batches of all epochs, prepared before they are requested.

    The user's data function runs in the thread that requests batches. Only reading, converting and
    dividing examples runs in a separate thread. The position counts delivered batches, not prepared
    ones.
    """

    def __init__(self, source: batch_division.BatchSource) -> None:
        self._source = source
        self.spec = source.spec
        self.sample = source.sample
        self._state = FeedPosition()
        self._length: int | None = None
        self._ahead = BATCHES
        self._room = threading.Semaphore(BATCHES)
        self.wait = input_wait.Wait()
        """The time that this process waits for its batches."""

    def targets(self, count: int) -> Any:
        """Targets from all over the source, if they are in memory; else None."""
        return (
            self._source.targets(count)
            if isinstance(self._source, batch_division.Indexed)
            else None
        )

    @property
    def examples(self) -> int | None:
        """Number of examples in an epoch, if the source knows it or an epoch has ended."""
        length = self._source.examples
        return self._length if length is None else length

    @property
    def state(self) -> FeedPosition:
        """The position of the next batch."""
        return self._state

    def restore(self, state: FeedPosition) -> None:
        """Continue at this position."""
        self._state = state

    def epoch(self, number: int, start: int) -> Generator[batch_division.Batch, None, None]:
        """The batches of an epoch from the example at position `start` on."""
        self.restore(FeedPosition(number, start))
        return self.remaining()

    def remaining(self) -> Generator[batch_division.Batch, None, None]:
        """The remaining batches of this epoch."""
        batches = self._source.epoch(self._state.epoch, self._state.example)
        self._room = threading.Semaphore(self._ahead)
        return self._counted(self.wait.timed(prefetched(batches, self._room)))

    def expect(self, count: int) -> None:
        """Prepare enough for so many batches that are requested in a row."""
        more = count - 1 + BATCHES - self._ahead
        if more > 0:
            self._ahead += more
            self._room.release(more)

    def end_epoch(self) -> None:
        """Skip the rest of this epoch."""
        if self._length is None:
            self._length = self._state.example
        self._state = FeedPosition(self._state.epoch + 1)

    def _counted(
        self, batches: Generator[batch_division.Batch, None, None]
    ) -> Generator[batch_division.Batch, None, None]:
        with contextlib.closing(batches):
            for batch in batches:
                example = self._state.example + batch.examples
                self._state = dataclasses.replace(self._state, example=example)
                yield batch


def prefetched(
    batches: Generator[batch_division.Batch, None, None], room: threading.Semaphore
) -> Generator[batch_division.Batch, None, None]:
    """Prepare batches ahead in a thread, which ends with this generator. Errors replace batches.

    `room` has the number of batches that may be ready.
    """
    ready: queue.SimpleQueue[batch_division.Batch | BaseException | None] = queue.SimpleQueue()
    leaving = threading.Event()

    def prepare() -> None:
        try:
            with contextlib.closing(batches):
                while room.acquire() and not leaving.is_set():
                    ready.put(next(batches, None))
        except BaseException as error:  # also SystemExit of the user's code
            ready.put(error)

    thread = threading.Thread(target=prepare, name="input", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item
    finally:
        leaving.set()
        room.release()
        thread.join(_LEAVE_SECONDS)
