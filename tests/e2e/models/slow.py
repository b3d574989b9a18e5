"""A line through points in many short epochs; all but the first ones begin with a wait, so that
something can happen during training, until there is a file "hurry" in the output directory.
"""

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

EPOCHS_WITHOUT_A_WAIT = 3
SECONDS_BEFORE_AN_EPOCH = 4.0
POLL_SECONDS = 0.1
EXAMPLES = 64


def build_model() -> Any:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def compile_model(model: Any) -> None:
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")


def training_data(context: Any) -> Any:
    end = time.monotonic() + SECONDS_BEFORE_AN_EPOCH * (context.epoch >= EPOCHS_WITHOUT_A_WAIT)
    while time.monotonic() < end and not (context.output_dir / "hurry").exists():
        time.sleep(POLL_SECONDS)
    x = np.linspace(0, 1, EXAMPLES, dtype="float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((x, 3 * x + 1))
