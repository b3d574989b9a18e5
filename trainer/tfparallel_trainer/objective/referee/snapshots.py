"""The values of all variables that traced functions use, read and restored."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

Handle = Any
"""What a traced function has of a variable."""


def handles_of(function: Any) -> list[Handle]:
    """The variables that a concrete function reads or assigns, in the order of its trace."""
    return [handle for handle in function.captured_inputs if dtype_of(handle) is not None]


def dtype_of(handle: Handle) -> tf.DType | None:
    """The type of a variable; None of what is none, such as a table."""
    if handle.dtype is not tf.resource:
        return None
    # TensorFlow has no public way to tell the variables among a function's inputs.
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)


def read(handle: Handle) -> tf.Tensor:
    """The value of a variable, in the host's memory."""
    with tf.device(handle.device):
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype_of(handle))
    return value if "CPU" in value.device else value.cpu()


def write(handle: Handle, value: tf.Tensor) -> None:
    """Assign a variable."""
    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def size_of(handles: Iterable[Handle]) -> int:
    """The bytes of some variables, each counted once."""
    data = {id(handle): handle._handle_data.shape_and_type[0] for handle in handles}.values()
    return sum(
        (tf.TensorShape(handle_shape.shape).num_elements() or 0)
        * tf.as_dtype(handle_shape.dtype).size
        for handle_shape in data
    )


class VariableSnapshot:
    """The values of some variables; on a CPU, none is copied before it changes."""

    def __init__(self, handles: Iterable[Handle]) -> None:
        self._handles = {id(handle): handle for handle in handles}
        self._values = {key: read(handle) for key, handle in self._handles.items()}

    def value(self, handle: Handle) -> Any:
        """A variable as it was, float64."""
        return as_float64(self._values[id(handle)])

    def change(self, handle: Handle) -> Any:
        """What was added to a variable since then, float64."""
        with np.errstate(all="ignore"):  # infinities
            return as_float64(read(handle)) - self.value(handle)

    def restore(self) -> None:
        """Assign the values again."""
        for key, handle in self._handles.items():
            write(handle, self._values[key])

    def move(self, handle: Handle, factors: Any) -> None:
        """Assign a variable its value times some factors."""
        value = self.value(handle) * factors
        write(handle, tf.cast(tf.constant(value), dtype_of(handle)))


def as_float64(tensor: Any) -> Any:
    """Numbers or truths as an array of float64."""
    return np.asarray(tensor.numpy()).astype(np.float64)
