"""The user's optimizer on a part of a model's variables.

Keras' optimizers clip and scale within `apply`, where they see the gradients of one rank only. So
this module does both instead, in Keras' own order. It unscales gradients, with those that are
accumulated from earlier steps, clips them by norms over all ranks, and applies them. The optimizer
itself counts the steps, keeps gradients between updates, and averages the weights.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.objective import gradient_sums, row_updates

_ACCUMULATORS = "_gradient_accumulator"
_ITERATIONS = "iteration"
"""Keras' names of accumulated gradients, and of the count of all steps."""


class ShardOptimizer:
    """An optimizer for the trained variables of one rank."""

    def __init__(self, keras_optimizer: Any, variables: Sequence[Any]) -> None:
        """Take the user's optimizer, not yet built."""
        self.keras_optimizer = keras_optimizer
        self._inner = getattr(keras_optimizer, "inner_optimizer", keras_optimizer)
        self._variables = list(variables)
        self._global_clipnorm = self._inner.global_clipnorm
        self._clipnorm, self._clipvalue = self._inner.clipnorm, self._inner.clipvalue
        self.adds_mentions = row_updates.adds_mentions(keras_optimizer)
        """Whether ranks may send the sum for each row of a sparse gradient."""
        self._steps = self._inner.gradient_accumulation_steps or 1
        self._factor = self._inner.loss_scale_factor
        self._inner.clipnorm = self._inner.clipvalue = self._inner.global_clipnorm = None
        self._inner.loss_scale_factor = None
        keras_optimizer.build(self._variables)
        self._accumulators = [
            variable for variable in self._inner.variables if variable.path.endswith(_ACCUMULATORS)
        ]
        (self._iterations,) = [
            variable for variable in self._inner.variables if variable.name == _ITERATIONS
        ]

    @property
    def clips_by_norm(self) -> bool:
        """Whether it clips by norms of gradients."""
        return self._global_clipnorm is not None or self._clipnorm is not None

    @property
    def clips_by_norms(self) -> bool:
        """Whether it clips each gradient by the gradient's own norm."""
        return self._clipnorm is not None

    @property
    def scales(self) -> bool:
        """Whether it scales the loss, so that an overflow is expected."""
        return isinstance(self.keras_optimizer, keras.optimizers.LossScaleOptimizer)

    @property
    def variables(self) -> list[Any]:
        """The optimizer's state, including accumulated gradients."""
        return list(self.keras_optimizer.variables)

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state."""
        return sum(
            variable.shape.num_elements() * tf.as_dtype(variable.dtype).size
            for variable in self.variables
        )

    def scale(self) -> tf.Tensor:
        """The factor of the loss: a scalar float32."""
        if self._factor is not None:
            return tf.constant(self._factor, tf.float32)
        return tf.cast(self.keras_optimizer.scale_loss(tf.ones((), tf.float32)), tf.float32)

    def unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Unscale gradients, and add the accumulated ones.

        A step that only accumulates does not use the result.
        """
        if self._factor is not None or self.scales:
            scale = self.scale()
            gradients = [times(gradient, 1 / scale) for gradient in gradients]
        if not self._accumulators:
            return list(gradients)
        pairs = zip(gradients, self._accumulators, strict=True)
        return [
            None
            if gradient is None
            else (tf.convert_to_tensor(gradient) + accumulator) / self._steps
            for gradient, accumulator in pairs
        ]

    def apply(self, gradients: Sequence[Any], norm: tf.Tensor, norms: tf.Tensor) -> None:
        """Clip and apply the result of `unscaled`, or accumulate it for a later step.

        Args:
            norm: of all gradients of all ranks together: a scalar.
            norms: of the gradient of each whole variable that this rank has a part of: [variables].
        """
        clipped = [
            None if gradient is None else self._clipped(gradient, norm, norms[index])
            for index, gradient in enumerate(gradients)
        ]
        if self._accumulators:
            clipped = self._in_place_of_kept(gradients, clipped)
        if any(gradient is not None for gradient in clipped):
            row_updates.adapt(self._inner).apply(clipped, self._variables)
        else:  # Keras refuses to apply nothing
            self._iterations.assign_add(1)
        if self.scales:  # doubles the scale of the loss after enough finite steps
            optimizer = self.keras_optimizer
            count = optimizer.step_counter + 1
            is_due = tf.equal(count, optimizer.dynamic_growth_steps)
            scale = tf.convert_to_tensor(optimizer.dynamic_scale)
            optimizer.dynamic_scale.assign(tf.where(is_due, scale * 2.0, scale))
            optimizer.step_counter.assign(tf.where(is_due, tf.zeros_like(count), count))

    def overflowed(self) -> None:
        """Halve the scale of the loss, as Keras does when gradients are not finite."""
        if self.scales:
            self.keras_optimizer.step_counter.assign(0)
            self.keras_optimizer.dynamic_scale.assign(self.keras_optimizer.dynamic_scale * 0.5)

    def _in_place_of_kept(self, gradients: Sequence[Any], clipped: Sequence[Any]) -> list[Any]:
        """Return the gradients with which Keras applies, or accumulates, exactly `clipped`.

        Keras adds the accumulated gradients, and divides by the number of steps of an update.
        """
        is_due = tf.equal((self._iterations + 1) % self._steps, 0)
        for accumulator in self._accumulators:
            accumulator.assign(tf.zeros(accumulator.shape, accumulator.dtype))
        return [
            None if gradient is None else tf.where(is_due, other, gradient) * self._steps
            for gradient, other in zip(gradients, clipped, strict=True)
        ]

    def _clipped(self, gradient: Any, norm: tf.Tensor, of_variable: tf.Tensor) -> Any:
        """Clip as Keras does.

        A sparse gradient stays sparse, unless the norm of all gradients makes it dense for an
        optimizer that changes all rows.
        """
        if self._global_clipnorm is not None:
            kind = gradient.dtype
            limit = tf.constant(self._global_clipnorm, kind)
            factor = limit * tf.minimum(1 / tf.cast(norm, kind), 1 / limit)
            if isinstance(gradient, tf.IndexedSlices) and row_updates.keeps_rows(self._inner):
                return row_updates.as_sum(self._inner, times(gradient, factor))
            return tf.convert_to_tensor(gradient) * factor
        if self._clipnorm is not None:
            variable_norm = tf.cast(of_variable, gradient.dtype)
            limit = tf.constant(self._clipnorm, gradient.dtype)
            return times(gradient, limit / tf.maximum(variable_norm, limit))
        if self._clipvalue is not None:
            return tf.clip_by_value(gradient, -self._clipvalue, self._clipvalue)
        return gradient


def times(gradient: Any, factor: Any) -> Any:
    """Multiply a gradient of any kind by a scalar."""
    if gradient is None:
        return None
    scale = tf.cast(factor, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return gradient * scale


def square(gradient: Any) -> tf.Tensor:
    """The sum of the squares, as a scalar float64.

    Each mention in a sparse gradient counts by itself.
    """
    return tf.reduce_sum(tf.square(tf.cast(gradient_sums.values(gradient), tf.float64)))
