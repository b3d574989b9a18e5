"""Residual blocks with batch normalization, here synchronized, and strides.

Source: keras.applications, ResNet50.
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def normalized(x):
    return layers.BatchNormalization(epsilon=1.001e-5, synchronized=True)(x)


def residual_block(x, filters, stride=1, conv_shortcut=False):
    shortcut = x
    if conv_shortcut:
        shortcut = normalized(layers.Conv2D(2 * filters, 1, strides=stride)(x))
    x = layers.Activation("relu")(normalized(layers.Conv2D(filters, 1, strides=stride)(x)))
    x = layers.Activation("relu")(normalized(layers.Conv2D(filters, 3, padding="SAME")(x)))
    x = normalized(layers.Conv2D(2 * filters, 1)(x))
    return layers.Activation("relu")(layers.Add()([shortcut, x]))


def build_model():
    inputs = keras.Input((16, 16, 3))
    x = layers.ZeroPadding2D(((3, 3), (3, 3)))(inputs)
    x = layers.Activation("relu")(normalized(layers.Conv2D(4, 7, strides=2)(x)))
    x = layers.ZeroPadding2D(((1, 1), (1, 1)))(x)
    x = layers.MaxPooling2D(3, strides=2)(x)
    x = residual_block(x, 4, conv_shortcut=True)
    x = residual_block(x, 6, stride=2, conv_shortcut=True)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def compile_model(model):
    optimizer = keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])


def training_data():
    random = np.random.default_rng(9)
    return random.normal(size=(24, 16, 16, 3)), random.integers(0, 3, 24)
