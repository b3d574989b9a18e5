"""Separable convolutions down, transposed ones up, with residuals at each size.

Source: keras.io, "Image segmentation with a U-Net-like architecture".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def normalized(x):
    return layers.BatchNormalization(synchronized=True)(x)


def build_model():
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    x = layers.Activation("relu")(normalized(x))
    previous_block_activation = x
    for filters in (6, 8):
        x = layers.Activation("relu")(x)
        x = normalized(layers.SeparableConv2D(filters, 3, padding="same")(x))
        x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = layers.Conv2D(filters, 1, strides=2, padding="same")(previous_block_activation)
        x = layers.add([x, residual])
        previous_block_activation = x
    for filters in (8, 6, 4):
        x = layers.Activation("relu")(x)
        x = normalized(layers.Conv2DTranspose(filters, 3, padding="same")(x))
        x = layers.UpSampling2D(2)(x)
        residual = layers.UpSampling2D(2)(previous_block_activation)
        x = layers.add([x, layers.Conv2D(filters, 1, padding="same")(residual)])
        previous_block_activation = x
    return keras.Model(inputs, layers.Conv2D(3, 3, activation="softmax", padding="same")(x))


def compile_model(model):
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")


def training_data():
    random = np.random.default_rng(13)
    return random.normal(size=(24, 16, 16, 3)), random.integers(0, 3, (24, 16, 16, 1))
