"""The time, told within a traced function that holds several ranks."""

import tensorflow as tf


class Clock:
    """A rank's own clock.

    In a traced function TensorFlow runs all operations with effects but without a variable in the
    order in which they were traced. Ranks are traced one after the other, so one that asked for
    the time would wait for all that another does, and for ever if that one waits for it. An
    operation that has a variable waits for others of this variable only: so the time goes into one.
    """

    def __init__(self, device: str) -> None:
        """Args:
        device: where the rank lives; the time is that of its host.
        """
        place = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
        self._place = place.to_string()
        with tf.device(self._place):
            self._told = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="clock")
        self._tell = tf.function(self._told_now, autograph=False)

    def now(self) -> tf.Tensor:
        """Seconds since 1970 when all is done that the current control dependencies name."""
        with tf.device(self._place):
            return self._tell()

    def _told_now(self) -> tf.Tensor:
        moment = tf.timestamp()
        self._told.assign(moment)
        return moment
