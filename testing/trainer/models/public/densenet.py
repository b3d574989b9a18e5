"""Each layer reads all before it; transitions halve the channels.

Source: keras.applications, DenseNet121, with group normalization.
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def conv_block(x, growth_rate):
    y = layers.Activation("relu")(layers.GroupNormalization(2)(x))
    y = layers.Conv2D(2 * growth_rate, 1, use_bias=False)(y)
    y = layers.Activation("relu")(layers.GroupNormalization(2)(y))
    y = layers.Conv2D(growth_rate, 3, padding="same", use_bias=False)(y)
    return layers.Concatenate()([x, y])


def transition_block(x):
    x = layers.Activation("relu")(layers.GroupNormalization(2)(x))
    x = layers.Conv2D(x.shape[-1] // 2, 1, use_bias=False)(x)
    return layers.AveragePooling2D(2, strides=2)(x)


def build_model():
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    for _ in range(2):
        x = conv_block(x, 4)
    x = transition_block(x)
    x = conv_block(x, 4)
    x = layers.GlobalAveragePooling2D()(layers.Activation("relu")(x))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def compile_model(model):
    model.compile(keras.optimizers.Nadam(0.003), "sparse_categorical_crossentropy")


def training_data():
    random = np.random.default_rng(10)
    return random.normal(size=(24, 12, 12, 3)), random.integers(0, 3, 24)
