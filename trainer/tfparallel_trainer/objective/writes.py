"""Records which variables code writes, at no cost if it writes none."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks  # not in the public API

from tfparallel_trainer.objective import tracing

_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})


@contextlib.contextmanager
def noted(places: Mapping[int, int]) -> Iterator[set[int]]:
    """Record the positions of variables (by their handles' ids) that the body's thread may write.

    Any operation on a variable may write it, except those that are known only to read. So may a
    traced function, but only the variables that it takes.
    """
    written: set[int] = set()

    def note(operation: str, inputs: Sequence[Any], *_: Any, **__: Any) -> None:
        if operation not in _READS:
            written.update(places[id(tensor)] for tensor in inputs if id(tensor) in places)

    op_callbacks.add_op_callback(note)
    try:
        yield written
    finally:
        op_callbacks.remove_op_callback(note)


class ChangeDetector:
    """Finds variables outside the model whose values have changed.

    A traced function that takes such a variable, as in an evaluation, usually only reads it.
    """

    def __init__(self, closures: Sequence[tracing.Closure]) -> None:
        self._closures = closures
        self._digests = [*map(_digest, closures)]

    def find_changed(self, places: Iterable[int]) -> set[int]:
        """The positions whose values have changed since the last call."""
        changed = set()
        for index in places:
            digest = _digest(self._closures[index])
            if digest != self._digests[index]:
                self._digests[index] = digest
                changed.add(index)
        return changed


def _digest(closure: tracing.Closure) -> str:
    return tracing.describe_array(tf.convert_to_tensor(closure))
