"""A rank's share of a batch, and the microbatches that it is divided into."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.data import nest

Arguments = dict[str, Any]
"""The inputs of the work on a microbatch, nested: everything that differs between microbatches."""


class Microbatches:
    """The arguments of each microbatch that do not come from other stages."""

    def __init__(self, share: Arguments, rows: Sequence[range], draws: tf.Tensor) -> None:
        """Take what is divided.

        Args:
            share: inputs and targets of the rank's share, nested: tensors [examples, …] of static
                shapes.
            rows: of each microbatch, in the share.
            draws: a number of each microbatch, for its random numbers: int64 [microbatches].
        """
        self._share = share
        self._rows = rows
        self._draws = draws
        self._parts = [self._divide(tensor) for tensor in nest.leaves(share)]

    def arguments(self, microbatch: int, iteration: Any = 0) -> Arguments:
        """The arguments of a microbatch.

        Args:
            microbatch: the number that it has in the first iteration of a loop.
            iteration: of the loop, a scalar int32; 0 outside a loop. Each iteration takes the
                microbatch after that of the one before, which has as many examples.
        """
        if tf.is_tensor(iteration):
            leaves = [
                self._slice(tensor, microbatch, iteration) for tensor in nest.leaves(self._share)
            ]
        else:
            leaves = [parts[microbatch] for parts in self._parts]
        return {**nest.packed(self._share, leaves), "draw": self._draws[microbatch + iteration]}

    def _divide(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        if len(self._rows) == 1:
            return [tensor]
        parts: list[tf.Tensor] = tf.split(tensor, [len(rows) for rows in self._rows])
        return parts

    def _slice(self, tensor: tf.Tensor, microbatch: int, iteration: tf.Tensor) -> tf.Tensor:
        rows = self._rows[microbatch]
        first = rows.start + iteration * len(rows)
        begin = tf.concat([[first], tf.zeros((tensor.shape.rank - 1,), tf.int32)], 0)
        return tf.slice(tensor, begin, [len(rows), *tensor.shape[1:]])
