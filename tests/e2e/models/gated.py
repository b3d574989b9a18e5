"""A line through points. Each attempt trains for four epochs more than the last one. Then it waits
for a file "hurry" in the output directory.
"""

import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

EPOCHS_OF_AN_ATTEMPT = 4
POLL_SECONDS = 0.1
EXAMPLES = 64


def build_model() -> Any:
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def compile_model(model: Any) -> None:
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")


def training_data(context: Any) -> Any:
    gate = EPOCHS_OF_AN_ATTEMPT * int(os.environ["TFPARALLEL_ATTEMPT"])
    while context.epoch >= gate and not (context.output_dir / "hurry").exists():
        time.sleep(POLL_SECONDS)
    x = np.linspace(0, 1, EXAMPLES, dtype="float32")[:, None]
    # Of a data set, the trainer asks for each epoch.
    return tf.data.Dataset.from_tensor_slices((x, 3 * x + 1))
