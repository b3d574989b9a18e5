"""Reads the clock of a host in a step."""

import time

import tensorflow as tf
from tensorflow.python.framework import config  # the public API does not tell


def read() -> tf.Tensor:
    """The time at which this operation runs, in seconds since 1970: a scalar float64.

    TensorFlow refuses to read its own clock once `tf.config.experimental.enable_op_determinism` was
    called. Then Python reads it, more slowly.
    """
    if config.is_op_determinism_enabled():
        return tf.numpy_function(time.time, [], tf.float64)
    return tf.timestamp()
