"""A line through points in many short epochs that each begin with a wait, so that something can
happen during training; until there is a file "hurry" in the output directory.
"""

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

SECONDS_BEFORE_AN_EPOCH = 2.0
EXAMPLES = 64


def build_model() -> Any:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def compile_model(model: Any) -> None:
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")


def training_data(context: Any) -> Any:
    if context.epoch and not (context.output_dir / "hurry").exists():
        time.sleep(SECONDS_BEFORE_AN_EPOCH)
    x = np.linspace(0, 1, EXAMPLES, dtype="float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((x, 3 * x + 1))
