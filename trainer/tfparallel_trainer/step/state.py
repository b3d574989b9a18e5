"""Makes all replicas equal, and waits for all of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.mesh import collectives
from tfparallel_trainer.step import replica

_CARRIED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def share(replicas: Sequence[replica.Replica], numbers: Sequence[int]) -> list[int]:
    """Give every replica the state of the first one.

    Args:
        replicas: those of this process.
        numbers: further numbers; all processes give as many.

    Returns:
        The numbers that the process of the first replica gave.
    """
    if replicas[0].data.size == 1:
        return list(numbers)

    def run(own_numbers: tf.Tensor) -> tf.Tensor:
        outcomes = []
        for own in replicas:
            with tf.device(own.device):
                own.data.begin(collectives.Program.SHARE_STATE)
                outcomes.append(spread(own, own.state(), own_numbers))
        return outcomes[0]

    shared = tf.function(run, autograph=False)(tf.constant(list(numbers), tf.int64))
    return [int(number) for number in np.atleast_1d(shared.numpy())]


class Sharing:
    """Gives every replica the state of the first one, or a part of it, any number of times."""

    def __init__(
        self,
        replicas: Sequence[replica.Replica],
        program: collectives.Program = collectives.Program.SHARE_CHANGES,
        part: Callable[[replica.Replica], list[Any]] = replica.Replica.state,
    ) -> None:
        """Args:
        replicas: those of this process.
        program: what the ranks then run together.
        part: the variables of a replica that are shared.
        """
        self._replicas = replicas
        self._program = program
        self._part = part
        self._traced: Any = tf.function(self._run, autograph=False)

    def __call__(self) -> None:
        """Do it now."""
        self._traced()

    def _run(self) -> None:
        for own in self._replicas:
            with tf.device(own.device):
                own.data.begin(self._program)
                spread(own, self._part(own), tf.zeros((1,), tf.int64))


class Statistics:
    """Gives every replica the first one's weights that are not trained.

    Replicas gather statistics (of BatchNormalization) each for itself, and the first one's are
    saved; so those are what must be evaluated.
    """

    def __init__(self, replicas: Sequence[replica.Replica]) -> None:
        self._first = replicas[0]
        self._sharing = Sharing(
            replicas, collectives.Program.SHARE_STATISTICS, replica.Replica.statistics
        )

    def share(self) -> None:
        """Do it; costs nothing for a model or mesh that has no need of it."""
        if self._first.data.size > 1 and self._first.statistics():
            self._sharing()


class Barrier:
    """Where ranks wait for each other."""

    def __init__(self, replicas: Sequence[replica.Replica]) -> None:
        self._replicas = replicas
        self._traced = tf.function(self._run, autograph=False)

    def __call__(self) -> None:
        """Return when every rank has come here."""
        self._traced()

    def _run(self) -> list[tf.Tensor]:
        arrivals = []
        for own in self._replicas:
            with tf.device(own.device):
                own.data.begin(collectives.Program.BARRIER)
                arrivals.append(own.data.sum(tf.ones((1,))))
        return arrivals


def spread(own: replica.Replica, variables: Sequence[Any], numbers: tf.Tensor) -> tf.Tensor:
    """Assign the first replica's values of the variables; give its numbers."""
    carried = [variable for variable in variables if tf.as_dtype(variable.dtype) in _CARRIED]
    values = [numbers, *(tf.convert_to_tensor(variable) for variable in carried)]
    shared, *rest = own.data.sum_all([own.data.of_first(value) for value in values])
    for variable, value in zip(carried, rest, strict=True):
        variable.assign(value)
    return shared
