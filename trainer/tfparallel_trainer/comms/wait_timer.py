"""Measures how long a rank waits for the others in a step."""

from collections.abc import Sequence

import tensorflow as tf

from tfparallel_trainer.comms import devices, host_clock


class WaitTimer:
    """Adds up the seconds between two moments of each step, by the clock of the rank's host.

    TensorFlow runs stateful operations without a variable in the order in which they were traced,
    across all ranks of a process. Reading the time is such an operation, so functions read it that
    use a variable of this rank alone.

    On a GPU, where it was not tested, a tensor may count as computed when its computation is
    queued. Then what the GPU itself takes counts as waiting.
    """

    def __init__(self, device: str) -> None:
        """Begin with no time, for a rank with this device."""
        self._host = devices.cpu_beside(device)
        with tf.device(self._host):
            self._sum = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        self._subtract_now = tf.function(self._subtract, autograph=False)
        self._add_now = tf.function(self._add, autograph=False)

    @property
    def seconds(self) -> float:
        """The sum over all steps, to a microsecond; no step may be under way."""
        return float(self._sum.numpy())

    def start(self, tensors: Sequence[tf.Tensor]) -> None:
        """Trace that the rank waits from when tensors are computed."""
        with tf.device(self._host), tf.control_dependencies(tensors):
            self._subtract_now()

    def stop(self, tensors: Sequence[tf.Tensor]) -> None:
        """Trace that it no longer waits once others are received."""
        with tf.device(self._host), tf.control_dependencies(tensors):
            self._add_now()

    def _subtract(self) -> None:
        self._sum.assign_sub(host_clock.read())

    def _add(self) -> None:
        self._sum.assign_add(host_clock.read())
