"""Tells whether a step gave finite numbers, and undoes one that did not.

Ranks decide alike without asking each other: each looks at sums over all ranks, or at weights that
are the same on all.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.objective import replica


def of_step(optimizer: Any, loss: tf.Tensor, gradients: Sequence[Any]) -> tf.Tensor:
    """Whether the loss and the gradients, both over all ranks, are finite: a scalar bool.

    With loss scaling gradients do not count: the scale is the largest that overflows rarely, and
    its optimizer leaves such a step out by itself.
    """
    looked_at = [loss]
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        looked_at += [_values(gradient) for gradient in gradients if gradient is not None]
    return _all_finite(looked_at)


class Weights:
    """Looks whether the weights that are trained are finite."""

    def __init__(self, replica: replica.Replica) -> None:
        self._replica = replica
        self._traced: Any = None

    def finite(self) -> bool:
        """Look now; the same on every process, because all replicas have the same weights."""
        if self._traced is None:
            self._traced = tf.function(self._run, autograph=False)
        return bool(self._traced().numpy())

    def _run(self) -> tf.Tensor:
        with tf.device(self._replica.device):
            weights = self._replica.model.trainable_variables
            return _all_finite([tf.convert_to_tensor(weight) for weight in weights])


class Memory:
    """What the forward pass changes (statistics and metrics), as it was before; for one trace."""

    def __init__(self, replica: replica.Replica) -> None:
        self._replica = replica
        changed = [*replica.statistics(), *replica.model.metrics_variables]
        self._before = [(variable, tf.identity(variable.value)) for variable in changed]

    def apply_if(self, condition: tf.Tensor, gradients: Sequence[Any], variables: Any) -> None:
        """Apply the gradients if the condition holds, else put everything back."""
        self.put_back_unless(condition)

        def apply() -> tf.Tensor:
            self._replica.optimizer.apply(gradients, variables)
            return tf.constant(True)

        tf.cond(condition, apply, lambda: tf.constant(False))

    def put_back_unless(self, condition: tf.Tensor) -> None:
        """Put everything back unless the condition holds."""
        for variable, value in self._before:
            variable.assign(tf.where(condition, variable.value, value))


def _values(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    are_finite = [tf.reduce_all(tf.math.is_finite(t)) for t in tensors if t.dtype.is_floating]
    return tf.reduce_all(tf.stack(are_finite))
