"""Strided convolutions and transposed ones take noise from images.

Source: keras.io, "Convolutional autoencoder for image denoising".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def build_model():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(6, 3, activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.Conv2D(6, 3, activation="relu", padding="same")(x)
    x = layers.MaxPooling2D(2, padding="same")(x)
    x = layers.Conv2DTranspose(6, 3, strides=2, activation="relu", padding="same")(x)
    x = layers.Conv2DTranspose(6, 3, strides=2, activation="relu", padding="same")(x)
    return keras.Model(inputs, layers.Conv2D(1, 3, activation="sigmoid", padding="same")(x))


def compile_model(model):
    model.compile("adam", "binary_crossentropy")


def training_data():
    random = np.random.default_rng(14)
    images = random.uniform(size=(24, 8, 8, 1))
    noise = random.normal(scale=0.4, size=images.shape)
    return np.clip(images + noise, 0, 1), images
