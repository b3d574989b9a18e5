"""Updates many small variables at once, with the numbers that Keras computes for each of them.

Adam has some 25 operations for each variable, and to start them takes longer than to compute them
where variables are small. Some of Keras' optimizers compute each element from the elements at the
same position, so `update_step` gives the same numbers for variables that are joined to a vector.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.objective import row_updates

MOST_ELEMENTS = 1 << 14
"""Maximum elements of a small variable. To copy a larger one into a vector costs more than the
saved operations."""

_ADAM = ("_momentums", "_velocities", "_velocity_hats")
_STATE = {
    keras.optimizers.SGD: ("momentums",),
    keras.optimizers.Adam: _ADAM,
    keras.optimizers.AdamW: _ADAM,
    keras.optimizers.RMSprop: ("_velocities", "_momentums", "_average_gradients"),
    keras.optimizers.Lion: ("_momentums",),
    keras.optimizers.Adagrad: ("_accumulators",),
}
"""Attributes in which optimizers that compute element by element keep a state for each variable."""


def apply(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Apply gradients as `optimizer.apply` does."""
    kind: Any = type(optimizer)
    if kind in _STATE:
        optimizer = row_updates.copy_as(optimizer, _packing(kind))
    optimizer.apply(gradients, variables)


def is_small(tensor: Any) -> bool:
    """Whether a tensor or a variable is of a static shape with few elements."""
    count = tensor.shape.num_elements()
    return count is not None and count <= MOST_ELEMENTS


def join(tensors: Sequence[Any]) -> tf.Tensor:
    """Concatenate the elements of tensors or variables of one type."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


@functools.cache
def _packing(kind: Any) -> Any:
    """A class of optimizers whose updates of small variables are joined."""

    def update(
        self: Any, gradients: Sequence[Any], variables: Sequence[Any], learning_rate: Any
    ) -> None:
        values = [getattr(variable, "value", variable) for variable in variables]
        groups: dict[Any, list[int]] = {}
        for index, (gradient, value) in enumerate(zip(gradients, values, strict=True)):
            is_packed = isinstance(gradient, tf.Tensor) and is_small(value)
            key = (gradient.dtype, value.dtype) if is_packed else None
            groups.setdefault(key, []).append(index)
        for key, indices in groups.items():
            chosen = [gradients[index] for index in indices], [values[index] for index in indices]
            if key is None or len(indices) == 1:
                kind._backend_update_step(self, *chosen, learning_rate)
            else:
                _update_together(row_updates.copy_as(self, kind), *chosen, learning_rate)

    return type(kind.__name__, (row_updates.adapted(kind),), {"_backend_update_step": update})


def _update_together(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], learning_rate: Any
) -> None:
    """Update variables of one type; the optimizer is a copy, and takes their vector for all."""
    indices = [optimizer._get_variable_index(variable) for variable in variables]
    weights = _Vector(variables)
    vectors = [weights]
    for name in _STATE[type(optimizer)]:
        states = getattr(optimizer, name, None)
        if states:
            vectors.append(_Vector([states[index].value for index in indices]))
            optimizer.__dict__[name] = vectors[-1:]
    optimizer.__dict__["_trainable_variables_indices"] = {weights._unique_id: 0}
    optimizer.update_step(join(gradients), weights, learning_rate)
    for vector in vectors:
        vector.write()


class _Vector:
    """Variables of one type as a variable: their elements in a row, written back at the end."""

    _unique_id = "vector"
    """By which an optimizer finds the states of a variable."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = variables
        self._shapes = [variable.shape for variable in variables]
        self._value: tf.Tensor | None = None
        self._changes: list[tuple[str, tf.Tensor]] = []
        """Made before the value was read."""
        self.dtype = variables[0].dtype
        self.shape = tf.TensorShape([sum(shape.num_elements() for shape in self._shapes)])

    def assign(self, value: tf.Tensor) -> None:
        """Replace the elements."""
        self._value = value
        self._changes = [("assign", value)]

    def assign_add(self, value: tf.Tensor) -> None:
        """Add to the elements."""
        self._change("assign_add", value)

    def assign_sub(self, value: tf.Tensor) -> None:
        """Subtract from the elements."""
        self._change("assign_sub", value)

    def write(self) -> None:
        """Assign the elements to the variables."""
        for method, value in self._changes:
            parts = tf.split(value, [shape.num_elements() for shape in self._shapes])
            for variable, shape, part in zip(self._variables, self._shapes, parts, strict=True):
                getattr(variable, method)(tf.reshape(part, shape))

    def _change(self, method: str, value: tf.Tensor) -> None:
        if self._value is None:
            self._changes.append((method, value))
        elif method == "assign_add":
            self.assign(self._value + value)
        else:
            self.assign(self._value - value)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        if self._value is None:
            self._value = join(self._variables)
            changes, self._changes = self._changes, []
            for method, value in changes:
                self._change(method, value)
        return tf.convert_to_tensor(self._value, dtype, name=name)
