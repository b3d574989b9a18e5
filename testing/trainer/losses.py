"""Losses that tests of the referee share."""

from typing import Any

import keras


class Weighted(keras.losses.Loss):
    """Has a weight in a variable of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = keras.Variable(1.0, trainable=False, name="alpha")

    def call(self, y: Any, y_pred: Any) -> Any:
        """The mean of squares, times the weight."""
        return self.alpha * keras.ops.mean(keras.ops.square(y - y_pred), -1)
