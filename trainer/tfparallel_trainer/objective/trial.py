"""Conditions of a trial: random numbers do not depend on other examples, and sums are known.

A trial computes some examples at once and in parts. Random operations draw the same numbers for
each example, in batches of any size. A layer's sum over replicas has the same value in the parts
and in the whole. Keras' BatchNormalization, which the log announces, takes its moving statistics.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import random as draws  # layers draw by what it holds

from tfparallel_trainer.objective import checks, synchrony

SHAPED = ("normal", "uniform", "truncated_normal", "randint", "gamma", "binomial", "beta")
"""Keras' random functions whose first argument is the shape of what they draw."""

_MOST_NUMBERS = 1 << 26
"""Maximum number of elements of a random weight: a copy of a larger table may not fit."""

_UNEVEN = ("categorical", "shuffle")
"""Keras' random functions that draw by the number of examples."""


class Draws:
    """The shapes of random numbers in a trial, without the first dimension."""

    def __init__(self) -> None:
        self.shapes: list[Any] = []
        """Shapes, equal for all parts of a batch if each example gets the same numbers."""

    def note(self, shape: Any) -> None:
        """Record the shape of random numbers."""
        self.shapes.append([str(tf.get_static_value(size)) for size in tf.unstack(shape)[1:]])


@contextlib.contextmanager
def same_draws() -> Iterator[Draws]:
    """Let keras.random draw the same numbers for all examples of a batch, in this thread."""
    owner, noted = threading.get_ident(), Draws()
    originals = {name: getattr(draws, name) for name in (*SHAPED, *_UNEVEN, "dropout")}

    def shaped(name: str) -> Callable[..., Any]:
        original = originals[name]

        def draw(shape: Any, *arguments: Any, **keywords: Any) -> Any:
            sizes = tf.cast(tf.convert_to_tensor(shape), tf.int32)
            if threading.get_ident() != owner or sizes.shape == (0,):
                return original(shape, *arguments, **keywords)
            noted.note(sizes)
            first = tf.concat([[1], sizes[1:]], 0)
            try:
                drawn = original(first, *arguments, **keywords)
            except (ValueError, tf.errors.InvalidArgumentError):  # numbers for each example
                noted.note(tf.repeat(sizes, 2))
                return original(shape, *arguments, **keywords)
            return tf.broadcast_to(drawn, tf.broadcast_dynamic_shape(tf.shape(drawn), sizes))

        return draw

    def uneven(name: str) -> Callable[..., Any]:
        def draw(first: Any, *arguments: Any, **keywords: Any) -> Any:
            if threading.get_ident() == owner:
                noted.note(tf.repeat(tf.shape(first), 2))
            return originals[name](first, *arguments, **keywords)

        return draw

    def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        if threading.get_ident() != owner or rate in (0, 1):
            return originals["dropout"](inputs, rate, noise_shape, seed)
        shape = draws._get_concrete_noise_shape(inputs, noise_shape)
        numbers = draws.uniform(shape, dtype="float32", seed=seed)
        kept = tf.cast(numbers >= rate, inputs.dtype)
        return inputs * kept / tf.cast(1.0 - rate, inputs.dtype)

    substitutes = {
        **{name: shaped(name) for name in SHAPED},
        **{name: uneven(name) for name in _UNEVEN},
        "dropout": dropout,
    }
    with substituted(draws, substitutes):
        yield noted


@contextlib.contextmanager
def moving_statistics() -> Iterator[None]:
    """Let Keras' BatchNormalization normalize as in inference, in this thread."""
    owner, original = threading.get_ident(), keras.layers.BatchNormalization.call

    def call(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if threading.get_ident() == owner:
            training = False
        return original(layer, inputs, training=training, mask=mask)

    with substituted(keras.layers.BatchNormalization, {"call": call}):
        yield


@contextlib.contextmanager
def substituted(owner: Any, substitutes: Mapping[str, Any]) -> Iterator[None]:
    """Replace attributes of a module or a class, by name, in the body."""
    originals = {name: getattr(owner, name) for name in substitutes}
    for name, substitute in substitutes.items():
        setattr(owner, name, substitute)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


class Sums(synchrony.NestedReplicaContext):
    """A replica context that records what layers add up, and returns known sums."""

    def __init__(self, known_addends: list[tf.Tensor] | None = None) -> None:
        super().__init__()
        self._known_addends = known_addends
        self.addends: list[tf.Tensor] = []

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the known sum, or else the value itself."""
        synchrony.check_operation(reduce_op)
        return keras.tree.map_structure(self._sum, value)

    def _sum(self, value: Any) -> tf.Tensor:
        self.addends.append(tf.convert_to_tensor(value))
        if self._known_addends is None or len(self._known_addends) < len(self.addends):
            return self.addends[-1]
        return self._known_addends[len(self.addends) - 1]


@contextlib.contextmanager
def unchanged(model: Any) -> Iterator[list[str]]:
    """Restore what the body changes behind Keras' back; yields the names of these variables.

    Keras' variables do not change in a `keras.StatelessScope`; TensorFlow's own do.
    """
    variables = [
        (f"{layer.name}/{name}", variable, variable.numpy())
        for layer in checks.layers(model)
        for name, variable in vars(layer).items()
        if isinstance(variable, tf.Variable)
    ]
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, variable, before in variables:
            if not np.array_equal(variable.numpy(), before):
                changed.append(name)
                variable.assign(before)


def drawn_weights(model: Any, seed: int) -> list[tuple[Any, tf.Tensor]]:
    """Draw a value for each trained weight, large enough that later layers depend on it.

    A matrix has the deviation 1 / sqrt(n), n being the smaller number of its rows and columns.
    """
    random = np.random.default_rng(seed)
    values = []
    for weight in model.trainable_weights:
        size = int(np.prod(weight.shape))
        if not tf.as_dtype(weight.dtype).is_floating or size > _MOST_NUMBERS:
            continue
        columns = weight.shape[-1] if len(weight.shape) > 1 else 1
        deviation = 1.0 / np.sqrt(max(1, min(columns, size // max(1, columns))))
        value = tf.cast(deviation * random.standard_normal(weight.shape), weight.dtype)
        if len(weight.shape) < 2:  # a scale stays close to its value
            value = weight.value + 0.5 * value
        values.append((weight, value if weight.constraint is None else weight.constraint(value)))
    return values
