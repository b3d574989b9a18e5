"""Losses that layers add themselves (activity_regularizer, add_loss), as a fraction.

Keras takes each as one number for the batch that the layer sees. The rule: such a number is a mean
over the examples. That of an activity_regularizer is, because Keras divides it by the batch; of
add_loss it is what the model's author is told. So the number of the whole batch is the mean of the
ranks' numbers, weighted by their examples.
"""

from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.objective import loss

TERM = loss.Term("", loss.no_function, loss.MEAN, "float32", 1.0)
"""What every model has besides the terms of its outputs."""


def fraction(model: Any, examples: tf.Tensor) -> loss.Fraction:
    """What layers added in the model's last call, on this many examples."""
    losses = model.losses
    regularised = [weight for weight in model.trainable_weights if weight.regularizer is not None]
    added_losses = losses[: len(losses) - len(regularised)]  # Keras lists those of the weights last
    kind = keras.config.floatx()
    total = tf.add_n(
        [tf.zeros((), kind), *(tf.cast(tf.reduce_sum(one), kind) for one in added_losses)]
    )
    count = tf.cast(examples, kind)
    # The mean over no examples is NaN, and counts for nothing.
    numerator = tf.math.multiply_no_nan(total, count)
    return loss.Fraction(numerator, tf.cast(count, tf.float64))
