"""What a replica of a strategy shares with the others, by public calls of its replica context.

Keras' optimizers clip a replica's own gradient and add up afterwards, which is another update than
that of one process. So gradients are added up here first, and the optimizer then runs in a context
that has nothing left to add: it clips and applies the sum, on every replica alike.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import synchrony


class Exchange(collectives.Communicator):
    """A replica's end of its strategy; make one in each replica, while it is traced."""

    def __init__(self, context: Any) -> None:
        """Args: context: the replica context that is current."""
        super().__init__(0, 1, 0, "")
        self.size = context.num_replicas_in_sync
        self.index = synchrony.number(context)
        self._context = context

    def begin(self, program: collectives.Program, variant: int = 0) -> None:
        """Nothing to do: TensorFlow numbers what a strategy sends."""

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Add a tensor up over the replicas."""
        if self.size == 1:
            return tf.identity(tensor)
        with self._context:  # the forward pass may run in a context of its own
            return self._context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def of_first(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor on the first replica, zeros on the others."""
        return tf.where(tf.equal(self.index, 0), tensor, tf.zeros_like(tensor))

    def gather_rows(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Join tensors [n, …] over the replicas, n being each one's own."""
        if self.size == 1:
            return list(tensors)
        with self._context:
            return [self._context.all_gather(tensor, axis=0) for tensor in tensors]


class Summed(synchrony.Within):
    """A replica's context in which gradients are sums already; enter it around `apply`."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Give the value back: it is the same on all replicas."""
        return value
