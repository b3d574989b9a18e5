"""Handwritten digits in a fixed order; after some epochs training stands still, so that something
can happen during it, until there is a file "hurry" in the output directory.
"""

import time
from typing import Any

import keras
import tensorflow as tf
from sklearn import datasets, model_selection

keras.config.set_floatx(
    "float64"
)  # so that a split model ends with the very numbers of a whole one

EPOCHS_BEFORE_THE_STOP = 3
POLL_SECONDS = 0.1


def build_model() -> Any:
    image = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    y = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = keras.layers.MaxPooling2D()(keras.layers.Add()([x, y]))
    x = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(image, keras.layers.Dense(10)(x))


def compile_model(model: Any) -> None:
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data(context: Any) -> Any:
    while context.epoch >= EPOCHS_BEFORE_THE_STOP and not (context.output_dir / "hurry").exists():
        time.sleep(POLL_SECONDS)
    x, _, y, _ = _split()
    return tf.data.Dataset.from_tensor_slices((x, y))


def evaluation_data() -> Any:
    _, x, _, y = _split()
    return x, y


def _split() -> Any:
    digits = datasets.load_digits()
    images = digits.images[..., None] / 16
    return model_selection.train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
