"""Dropout and noise between dense layers."""

import keras
import numpy as np

keras.config.set_floatx("float64")


def build_model():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(12, "tanh"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(8, "tanh"),
            keras.layers.GaussianNoise(0.2),
            keras.layers.Dense(3),
        ]
    )


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)


def training_data():
    random = np.random.default_rng(1)
    return random.normal(size=(70, 6)), random.integers(0, 3, 70)
