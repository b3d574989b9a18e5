"""A line through points, one of which is missing: the loss of the third step is not a number."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def build_model() -> Any:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def compile_model(model: Any) -> None:
    model.compile(optimizer="sgd", loss="mse")


def training_data() -> Any:
    x = np.linspace(0, 1, 128, dtype="float32")[:, None]
    x[70] = np.nan
    return tf.data.Dataset.from_tensor_slices((x, 3 * x + 1))
