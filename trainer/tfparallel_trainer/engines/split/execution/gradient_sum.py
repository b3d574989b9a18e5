"""The gradient of one weight, added up over the microbatches of a rank."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfparallel_trainer.objective import gradient_sums, lookups
from tfparallel_trainer.objective.gradient_sums import Form, Kind


def tensors_of(kind: Kind, gradient: Any) -> list[tf.Tensor]:
    """The tensors that a gradient is made of, without rows that are known while tracing."""
    if kind.form is Form.ABSENT:
        return []
    if kind.form is Form.DENSE:
        return [gradient]
    tensors = []
    for part in lookups.divide(gradient, kind.sources):
        tensors += [part.values] if part.lookup.rows else [part.values, part.indices]
    return tensors


class GradientSum:
    """A sum that keeps sparse gradients sparse."""

    def __init__(self) -> None:
        self._dense: Any = None
        self._of_batch: list[lookups.Slices] = []
        self._others: list[lookups.Slices] = []
        """Slices of rows that are the same in each microbatch."""

    def add(self, kind: Kind, tensors: Iterator[tf.Tensor]) -> list[tf.Tensor]:
        """Add a gradient, as `tensors_of` returned it; returns the tensors to compute."""
        if kind.form is Form.ABSENT:
            return []
        if kind.form is Form.DENSE:
            gradient = next(tensors)
            self._dense = gradient if self._dense is None else tf.add_n([self._dense, gradient])
            return [self._dense]
        parts = [_slices(lookup, tensors) for lookup in kind.sources]
        self._of_batch += [part for part in parts if part.lookup.of_batch]
        others = [part for part in parts if not part.lookup.of_batch]
        self._others = lookups.add([self._others, others]) if self._others else others
        return [part.values for part in parts]

    def total(self, weight: Any) -> Any:
        """The sum: a tensor, slices, or None."""
        slices = [*self._of_batch, *self._others]
        if not slices:
            return self._dense
        dense_shape = tf.constant(list(weight.shape), tf.int64)
        return gradient_sums.add(self._dense, lookups.join(slices, dense_shape))


def _slices(lookup: lookups.Lookup, tensors: Iterator[tf.Tensor]) -> lookups.Slices:
    values = next(tensors)
    rows = tf.constant(lookup.rows, tf.int64) if lookup.rows else next(tensors)
    return lookups.Slices(lookup, rows, values)
