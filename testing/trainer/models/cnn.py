"""Convolutions, momentum and clipping by the global norm; 49 examples leave ranks with none."""

import keras
import numpy as np

keras.config.set_floatx("float64")


def build_model():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(6, 3, activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def compile_model(model):
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, global_clipnorm=0.3),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )


def training_data():
    random = np.random.default_rng(2)
    return random.normal(size=(49, 6, 6, 1)), random.integers(0, 3, 49)
