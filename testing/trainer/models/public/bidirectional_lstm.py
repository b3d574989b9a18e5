"""Recurrent layers in both directions over tokens, whose padding is masked.

Source: keras.io, "Bidirectional LSTM on IMDB", with `mask_zero` of the guide "Understanding
masking & padding".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def build_model():
    inputs = keras.Input((9,), dtype="int32")
    x = layers.Embedding(30, 8, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(5))(x)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def compile_model(model):
    model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])


def training_data():
    random = np.random.default_rng(20)
    tokens = random.integers(1, 30, (24, 9)).astype("int32")
    tokens[np.arange(9) >= random.integers(1, 10, (24, 1))] = 0
    return tokens, random.integers(0, 2, (24, 1))
