"""Keeps track of the workers' work, so that none is lost when workers are lost or hang.

TensorFlow reschedules the work of a lost worker. But it waits for a hung worker without limit, so
the ledger reschedules that worker's work, which may then be done twice.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import tensorflow as tf

_LOOK_EVERY_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 0.2
"""Seconds before results that could not be fetched are fetched again."""

Label = TypeVar("Label")
"""Type of the caller's key for a work item."""


@dataclasses.dataclass(frozen=True, slots=True)
class _WorkItem(Generic[Label]):
    label: Label
    function: Any
    arguments: tuple[Any, ...]


class Ledger(Generic[Label]):
    """The work whose results have not arrived."""

    def __init__(self, coordinator: Any, threads: int, count_hung: Callable[[], int]) -> None:
        """Schedule work by TensorFlow's coordinator; `threads` fetch results."""
        self._coordinator = coordinator
        self._count_hung = count_hung
        self._threads = concurrent.futures.ThreadPoolExecutor(threads, "results")
        self._pieces: dict[concurrent.futures.Future[Any], _WorkItem[Label]] = {}
        self._abandoned: list[concurrent.futures.Future[Any]] = []
        """Labels of rescheduled work items; a hung worker still has those that have not ended."""

    def __len__(self) -> int:
        return len(self._pieces)

    def send(self, label: Label, function: Any, arguments: tuple[Any, ...]) -> None:
        """Schedule work on the next free worker, or raise the error of an earlier item."""
        value = self._coordinator.schedule(function, args=arguments)
        piece = _WorkItem(label, function, arguments)
        self._pieces[self._threads.submit(fetch, value)] = piece

    def take(self) -> list[tuple[Label, Any]]:
        """Return the results that have arrived; waits for at least one."""
        while self._pieces:
            results = self.ready(_LOOK_EVERY_SECONDS)
            if results:
                return results
            self._rescue()
        return []

    def ready(self, seconds: float = 0.0) -> list[tuple[Label, Any]]:
        """Return the results that have arrived; waits at most `seconds` for one."""
        ended, _ = concurrent.futures.wait(
            self._pieces, seconds, concurrent.futures.FIRST_COMPLETED
        )
        results: list[tuple[Label, Any]] = []
        for future in ended:
            piece = self._pieces.pop(future)
            try:
                results.append((piece.label, future.result()))
            except tf.errors.CancelledError:  # another item has failed, and this raises its error
                self.send(piece.label, piece.function, piece.arguments)
        return results

    def _rescue(self) -> None:
        """Reschedule work that only hung workers can have.

        Each worker has one item at a time. It may take one although it is known to hang, because
        the coordinator does not know. While more items are pending, other workers return them.
        """
        self._abandoned = [future for future in self._abandoned if not future.done()]
        if len(self._pieces) > self._count_hung() - len(self._abandoned):
            return
        for future, piece in list(self._pieces.items()):
            del self._pieces[future]  # its result is never taken
            self._abandoned.append(future)
            self.send(piece.label, piece.function, piece.arguments)


def fetch(value: Any) -> Any:
    """Fetch the results of a step, which may be a repeated one.

    The worker keeps the results until they are fetched. If the worker is lost first, fetching
    fails; the coordinator notices that, and reschedules the step. An error of the step itself is
    the same object at every attempt.
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
