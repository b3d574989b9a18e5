"""Models of equal parts, one after the other, which meshes divide evenly."""

import os

import keras
import numpy as np

PARTS = 4
WIDTH = int(os.environ["BENCHMARK_WIDTH"])


def dense():
    x = inputs = keras.Input((WIDTH,))
    for _ in range(PARTS):
        x = keras.layers.Dense(WIDTH, activation="relu")(x)
        x = keras.layers.Dense(WIDTH)(x)
    return keras.Model(inputs, x)


def convolutions():
    channels = WIDTH // 4
    x = inputs = keras.Input((8, 8, channels))
    for _ in range(PARTS):
        x = keras.layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        x = keras.layers.Conv2D(channels, 3, padding="same")(x)
    return keras.Model(inputs, x)


def attention():
    x = inputs = keras.Input((16, WIDTH))
    for _ in range(PARTS):
        normal = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(8, WIDTH // 8)(normal, normal)
        normal = keras.layers.LayerNormalization()(x)
        wide = keras.layers.Dense(4 * WIDTH, activation="gelu")(normal)
        x = x + keras.layers.Dense(WIDTH)(wide)
    return keras.Model(inputs, x)


ALL = {"dense": dense, "convolutions": convolutions, "attention": attention}


def compile_model(model):
    model.compile(keras.optimizers.Adam(1e-3), "mse")


def example(model):
    """(x, y, sample_weight) of one example."""
    return *(
        np.zeros((1, *tensor.shape[1:]), np.float32) for tensor in (model.input, model.output)
    ), None
