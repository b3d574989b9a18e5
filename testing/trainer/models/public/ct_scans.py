"""Convolutions in three dimensions classify volumes.

Source: keras.io, "3D image classification from CT scans".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def build_model():
    inputs = keras.Input((8, 8, 6, 1))
    x = layers.Conv3D(4, 3, activation="relu", padding="same")(inputs)
    x = layers.MaxPool3D(pool_size=2)(x)
    x = layers.BatchNormalization(synchronized=True)(x)
    x = layers.Conv3D(6, 3, activation="relu")(x)
    x = layers.BatchNormalization(synchronized=True)(x)
    x = layers.Dense(8, activation="relu")(layers.GlobalAveragePooling3D()(x))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def compile_model(model):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.001, 4, 0.96, staircase=True)
    model.compile(
        loss="binary_crossentropy", optimizer=keras.optimizers.Adam(schedule), metrics=["acc"]
    )


def training_data():
    random = np.random.default_rng(31)
    return random.uniform(size=(24, 8, 8, 6, 1)), random.integers(0, 2, (24, 1))
