"""Recurrent convolutions predict the next frame of each.

Source: keras.io, "Next-Frame Video Prediction with Convolutional LSTMs".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def build_model():
    inputs = keras.Input((4, 8, 8, 1))
    x = layers.ConvLSTM2D(4, (3, 3), padding="same", return_sequences=True, activation="relu")(
        inputs
    )
    x = layers.BatchNormalization(synchronized=True)(x)
    x = layers.ConvLSTM2D(4, (1, 1), padding="same", return_sequences=True, activation="relu")(x)
    x = layers.Conv3D(1, (3, 3, 3), activation="sigmoid", padding="same")(x)
    return keras.Model(inputs, x)


def compile_model(model):
    model.compile(loss=keras.losses.BinaryCrossentropy(), optimizer=keras.optimizers.Adam())


def training_data():
    frames = np.random.default_rng(30).uniform(size=(24, 5, 8, 8, 1))
    return frames[:, :-1], frames[:, 1:]
