"""Makes all replicas equal, and waits for all of them."""

from collections.abc import Sequence

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

    def run(own_numbers: tf.Tensor) -> tf.Tensor:
        outcomes = []
        for own in replicas:
            with tf.device(own.device):
                own.data.begin(collectives.Program.SHARE_STATE)
                variables = [v for v in own.state() if tf.as_dtype(v.dtype) in _CARRIED]
                values = [own_numbers, *(tf.convert_to_tensor(v) for v in variables)]
                if own.data.index != 0:
                    values = [tf.zeros_like(value) for value in values]
                first, *rest = own.data.sum_all(values)
                for variable, value in zip(variables, rest, strict=True):
                    variable.assign(value)
                outcomes.append(first)
        return outcomes[0]

    shared = tf.function(run, autograph=False)(tf.constant(list(numbers), tf.int64))
    return [int(number) for number in np.atleast_1d(shared.numpy())]


def barrier(replicas: Sequence[replica.Replica]) -> None:
    """Return when every rank has come here."""

    def run() -> list[tf.Tensor]:
        arrivals = []
        for own in replicas:
            with tf.device(own.device):
                own.data.begin(collectives.Program.BARRIER)
                arrivals.append(own.data.sum(tf.ones((1,))))
        return arrivals

    tf.function(run, autograph=False)()
