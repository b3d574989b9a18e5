"""Tells a rank the time within a traced function, without an order among ranks."""

import tensorflow as tf


class Clock:
    """The clock of one rank.

    TensorFlow runs all operations with a state that use no variable in the order in which they were
    traced, those of other ranks among them. Reading the time is one: so stages of one process would
    never work at the same time, and ranks that add up within a layer would wait for each other
    forever. So the time is read in a function that uses a variable, and this rank alone has it.
    """

    def __init__(self, device: str) -> None:
        """Args:
        device: where the rank lives; the time is that of its processor.
        """
        processor = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
        self.processor = processor.to_string()
        """Where moments are."""
        with tf.device(self.processor):
            self._moment = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="moment")
        self._read = tf.function(self._now, autograph=False)

    def read(self) -> tf.Tensor:
        """The moment at which this operation runs, in seconds: a scalar float64."""
        with tf.device(self.processor):
            return self._read()

    def _now(self) -> tf.Tensor:
        with tf.control_dependencies([self._moment.assign(tf.timestamp())]):
            return self._moment.read_value()
