"""Work that is given to workers: all of it comes back, whoever is lost or hung meanwhile.

TensorFlow gives the work of a worker that is lost to another. For one that is hung it waits
without limit, so what such a worker holds is given out again here, and may then be done twice.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import tensorflow as tf

_LOOK_EVERY_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 0.2
"""After how long results that could not be brought here are looked for again."""

Label = TypeVar("Label")
"""Type of the caller's key for a work item."""


@dataclasses.dataclass(frozen=True, slots=True)
class _WorkItem(Generic[Label]):
    label: Label
    function: Any
    arguments: tuple[Any, ...]


class Ledger(Generic[Label]):
    """The work that is given out and has not come back."""

    def __init__(self, coordinator: Any, threads: int, count_hung: Callable[[], int]) -> None:
        """Give work by TensorFlow's coordinator; as many threads fetch results."""
        self._coordinator = coordinator
        self._count_hung = count_hung
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, "results")
        self._pieces: dict[concurrent.futures.Future[Any], _WorkItem[Label]] = {}
        self._abandoned: list[concurrent.futures.Future[Any]] = []
        """Of pieces that were given out again; a hung worker still has each that has not ended."""

    def __len__(self) -> int:
        return len(self._pieces)

    def send(self, label: Label, function: Any, arguments: tuple[Any, ...]) -> None:
        """Give work to the next worker that is free, or raise what an earlier piece failed with."""
        value = self._coordinator.schedule(function, args=arguments)
        piece = _WorkItem(label, function, arguments)
        self._pieces[self._threads.submit(fetch, value)] = piece

    def take(self) -> list[tuple[Label, Any]]:
        """What has come back; waits for something where nothing has."""
        while self._pieces:
            results = self.ready(_LOOK_EVERY_SECONDS)
            if results:
                return results
            self._rescue()
        return []

    def ready(self, seconds: float = 0.0) -> list[tuple[Label, Any]]:
        """What has come back; waits no longer than this where nothing has."""
        ended, _ = concurrent.futures.wait(
            self._pieces, seconds, concurrent.futures.FIRST_COMPLETED
        )
        results: list[tuple[Label, Any]] = []
        for future in ended:
            piece = self._pieces.pop(future)
            try:
                results.append((piece.label, future.result()))
            except tf.errors.CancelledError:  # another piece has failed, and this raises its error
                self.send(piece.label, piece.function, piece.arguments)
        return results

    def _rescue(self) -> None:
        """Reschedule work that only hung workers can have.

        Each has one piece at a time, and may take one when it is already known to be hung: the
        coordinator does not know. So long as there are more, others bring them back.
        """
        self._abandoned = [future for future in self._abandoned if not future.done()]
        if len(self._pieces) > self._count_hung() - len(self._abandoned):
            return
        for future, piece in list(self._pieces.items()):
            del self._pieces[future]  # its result is never taken, should it ever come
            self._abandoned.append(future)
            self.send(piece.label, piece.function, piece.arguments)


def fetch(value: Any) -> Any:
    """Bring the results of a step here, which may be a step that is made again.

    Results wait on the worker that made them. When it is lost first, bringing them here fails; the
    coordinator notices by itself and gives the step to another. An error that the step itself
    ended with is the same object at every look.
    """
    before: tf.errors.OpError | None = None
    while True:
        try:
            return value.fetch()
        except tf.errors.OpError as error:
            if error is before or isinstance(error, tf.errors.CancelledError):
                raise
            before = error
            time.sleep(_LOOK_AGAIN_SECONDS)
