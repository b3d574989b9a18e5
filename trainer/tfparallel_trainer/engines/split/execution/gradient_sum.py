"""The gradient of one weight, added up over the microbatches of a rank."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.objective import gradient_sums, lookups
from tfparallel_trainer.objective.gradient_sums import Form, Kind

_Arrays = tuple[tf.TensorArray, tf.TensorArray]
"""Rows and values of the slices of one look-up, by iteration of a loop."""


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
        self._latest: list[lookups.Slices] = []
        """Those of rows of the latest microbatch."""
        self._arrays: list[_Arrays] = []
        """While a loop is traced, what its iterations add to `_of_batch`."""

    def add(self, kind: Kind, tensors: Iterator[tf.Tensor], iteration: Any = 0) -> list[tf.Tensor]:
        """Add a gradient; return the tensors to compute.

        Args:
            kind: the gradient's kind.
            tensors: what `tensors_of` returned for the gradient.
            iteration: of the loop, a scalar int32. Outside a loop, it is not used.
        """
        if kind.form is Form.ABSENT:
            return []
        if kind.form is Form.DENSE:
            gradient = next(tensors)
            self._dense = gradient if self._dense is None else tf.add_n([self._dense, gradient])
            return [self._dense]
        parts = [_slices(lookup, tensors) for lookup in kind.sources]
        self._latest = [part for part in parts if part.lookup.of_batch]
        if self._arrays:
            self._arrays = [
                (rows.write(iteration, part.indices), values.write(iteration, part.values))
                for (rows, values), part in zip(self._arrays, self._latest, strict=True)
            ]
        else:
            self._of_batch += self._latest
        others = [part for part in parts if not part.lookup.of_batch]
        self._others = lookups.add([self._others, others]) if self._others else others
        return [part.values for part in parts]

    def begin_loop(self, iterations: int) -> None:
        """Prepare for a loop, each iteration of which adds a gradient like the latest one."""
        self._arrays = [
            (_array(part.indices, iterations), _array(part.values, iterations))
            for part in self._latest
        ]

    def carried(self) -> list[Any]:
        """The tensors and arrays that an iteration of a loop changes, in a fixed order."""
        dense = [] if self._dense is None else [self._dense]
        arrays = [array for pair in self._arrays for array in pair]
        return [*dense, *(part.values for part in self._others), *arrays]

    def restore(self, carried: Sequence[Any]) -> None:
        """Go on from what `carried` returned in another iteration."""
        remaining = iter(carried)
        self._dense = None if self._dense is None else next(remaining)
        self._others = [part.with_values(next(remaining)) for part in self._others]
        self._arrays = [(next(remaining), next(remaining)) for _ in self._arrays]

    def end_loop(self) -> None:
        """Add what the iterations of a loop have written."""
        for part, (rows, values) in zip(self._latest, self._arrays, strict=True):
            self._of_batch.append(lookups.Slices(part.lookup, rows.concat(), values.concat()))
        self._arrays = []

    def total(self, weight: Any) -> Any:
        """The sum: a tensor, slices, or None."""
        slices = [*self._of_batch, *self._others]
        if not slices:
            return self._dense
        dense_shape = tf.constant(list(weight.shape), tf.int64)
        return gradient_sums.add(self._dense, lookups.join(slices, dense_shape))


def _array(tensor: tf.Tensor, iterations: int) -> tf.TensorArray:
    return tf.TensorArray(tensor.dtype, iterations, element_shape=tensor.shape, infer_shape=False)


def _slices(lookup: lookups.Lookup, tensors: Iterator[tf.Tensor]) -> lookups.Slices:
    values = next(tensors)
    rows = tf.constant(lookup.rows, tf.int64) if lookup.rows else next(tensors)
    return lookups.Slices(lookup, rows, values)
