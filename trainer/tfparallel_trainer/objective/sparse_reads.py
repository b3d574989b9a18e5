"""Lets look-ups read only the rows that they name, by the variable of the table.

Keras' Embedding reads its variable and gathers from the value. After the first update of single
rows, TensorFlow copies a table each time that it is read as a whole. A gather by the variable's
handle gives the same rows and the same gradient, and copies nothing but the rows.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import numpy  # layers look rows up by what it holds

_take = numpy.take
_lock = threading.Lock()
_uses = 0
"""Number of active bodies of `by_handle`: a strategy traces its replicas in threads."""


@contextlib.contextmanager
def by_handle() -> Iterator[None]:
    """Let Keras look rows of variables up by their handles in the body."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """Look up as `keras.ops.take` does, by the handle where `x` is a variable."""
    table = _variable(x)
    is_other = axis != 0 or isinstance(indices, (tf.SparseTensor, tf.RaggedTensor))
    if table is None or is_other:
        return _take(x, indices, axis)
    rows = tf.convert_to_tensor(indices)
    if rows.dtype not in (tf.int32, tf.int64):
        return _take(x, indices, axis)
    # Negative rows count from the end, as for Keras.
    return tf.gather(table, tf.where(rows < 0, rows + table.shape[0], rows))


def _variable(x: Any) -> Any:
    """The TensorFlow variable of a table. None: it is not a variable, or is on a TPU."""
    value = x.value if isinstance(x, keras.Variable) else x
    if not (isinstance(value, tf.Variable) and value.dtype.is_floating and value.shape.rank):
        return None
    is_tpu = isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    return None if is_tpu else value


def _count(difference: int) -> None:
    global _uses
    with _lock:
        _uses += difference
        numpy.take = take if _uses else _take
