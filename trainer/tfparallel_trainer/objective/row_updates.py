"""Updates by a sparse gradient that touch only the rows that it names.

By Keras' definitions, SGD without momentum and Adagrad change no other rows. But Adagrad's update
reads its whole accumulator several times, and a clip by the norm of all gradients makes sparse
gradients dense. The state of the other optimizers decays in every row, so their updates read and
write whole tables.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

_KINDS = (keras.optimizers.SGD, keras.optimizers.Adagrad)
"""Optimizers that change no other rows. With momentum, SGD makes a gradient dense by itself."""
_LINEAR = (keras.optimizers.SGD, keras.optimizers.Lion)
"""Optimizers that take a gradient as it is, and neither square it nor take its absolute value."""
_ACCUMULATING = (
    *_KINDS,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.RMSprop,
    keras.optimizers.Lion,
)
"""Optimizers whose accumulated gradients are known to be added up as Keras' base class does it."""


def adapt(optimizer: Any, *, for_xla: bool = False) -> Any:
    """Return an optimizer of the same variables and numbers whose updates touch named rows only.

    A user's own optimizer, and one that touches all rows, is returned as it is. So is, for XLA, one
    that would have to count rows, because XLA compiles known shapes only.
    """
    if not keeps_rows(optimizer) or (for_xla and _counts_rows(optimizer)):
        return optimizer
    kind: Any = type(optimizer)
    return copy_as(optimizer, adapted(kind))


def keeps_rows(optimizer: Any) -> bool:
    """Whether a gradient may stay sparse for an optimizer, although Keras would make it dense."""
    return type(optimizer) in _KINDS


def adds_mentions(optimizer: Any) -> bool:
    """Whether an update depends on a sparse gradient only by the sum that it gives for each row.

    Other optimizers of Keras square each mention of a row by itself, and clipping looks at each
    mention. Accumulated gradients are tables, in which Keras has added mentions up before.
    """
    kind = type(optimizer)
    if kind in _ACCUMULATING and optimizer.gradient_accumulation_steps:
        return True
    clips = (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    return kind in _LINEAR and not any(clips)


@functools.cache
def adapted(kind: Any) -> Any:
    """A class of optimizers like `kind`, whose updates touch named rows only; or `kind` itself."""
    if kind not in _KINDS:
        return kind
    methods: dict[str, Any] = {"_clip_gradients": functools.partialmethod(_clip, kind)}
    if kind is keras.optimizers.Adagrad:
        methods["update_step"] = _update_adagrad
    return type(kind.__name__, (kind,), methods)


def copy_as(optimizer: Any, kind: Any) -> Any:
    """An optimizer of another class with the same variables."""
    copied = object.__new__(kind)
    copied.__dict__.update(optimizer.__dict__)
    return copied


def as_sum(optimizer: Any, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The rows of a gradient that Keras would make dense for an optimizer that keeps other rows."""
    if not isinstance(optimizer, keras.optimizers.Adagrad):
        return gradient  # adds mentions up itself
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _clip(optimizer: Any, kind: Any, gradients: Sequence[Any]) -> list[Any]:
    """Clip as Keras does, by the norm of all gradients without making sparse ones dense.

    Keras takes that norm over mentions of rows, and adds the mentions up afterwards.
    """
    if not _clips_by_global_norm(optimizer):
        return list(kind._clip_gradients(optimizer, gradients))
    values = [
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in gradients
    ]
    return [
        as_sum(optimizer, tf.IndexedSlices(clipped, gradient.indices, gradient.dense_shape))
        if isinstance(gradient, tf.IndexedSlices)
        else clipped
        for gradient, clipped in zip(
            gradients, kind._clip_gradients(optimizer, values), strict=True
        )
    ]


def _clips_by_global_norm(optimizer: Any) -> bool:
    return bool(optimizer.global_clipnorm) and not optimizer.clipnorm


def _counts_rows(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.Adagrad) and _clips_by_global_norm(optimizer)


def _update_adagrad(optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    """Update as Adagrad does (Duchi et al. 2011), each mention of a row by itself as in Keras."""
    kind = variable.dtype
    epsilon = tf.constant(optimizer.epsilon, kind)
    has_epsilon = tf.get_static_value(epsilon) > 0  # without, Keras divides other rows by zero
    if not isinstance(gradient, tf.IndexedSlices) or not has_epsilon:
        keras.optimizers.Adagrad.update_step(optimizer, gradient, variable, learning_rate)
        return
    rows, values = gradient.indices, tf.cast(gradient.values, kind)
    accumulator = optimizer._accumulators[optimizer._get_variable_index(variable)]

    def slices(new_values: tf.Tensor) -> tf.IndexedSlices:
        return tf.IndexedSlices(new_values, rows, gradient.dense_shape)

    optimizer.assign_add(accumulator, slices(tf.square(values)))
    divisors = tf.sqrt(tf.gather(accumulator.value, rows) + epsilon)
    optimizer.assign_sub(variable, slices(tf.cast(learning_rate, kind) * values / divisors))
