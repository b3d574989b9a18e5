"""A spectrogram goes through convolutions and recurrent layers to Keras' CTC loss.

Source: keras.io, "Automatic Speech Recognition using CTC".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def build_model():
    spectrogram = keras.Input((20, 9), name="input")
    x = layers.Reshape((20, 9, 1))(spectrogram)
    x = layers.Conv2D(4, [3, 5], strides=[2, 2], padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization(synchronized=True)(x))
    x = layers.Reshape((10, 20))(x)
    for _ in range(2):
        recurrent = layers.GRU(5, return_sequences=True, reset_after=True)
        x = layers.Bidirectional(recurrent, merge_mode="concat")(x)
    x = layers.ReLU()(layers.Dense(8)(x))
    return keras.Model(spectrogram, layers.Dense(7)(x))


def compile_model(model):
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.CTC())


def training_data():
    random = np.random.default_rng(18)
    return random.normal(size=(24, 20, 9)), random.integers(1, 7, (24, 4))
