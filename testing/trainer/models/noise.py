"""A layer whose random operations have no seed, and which prints what they drew."""

import keras
import numpy as np
import tensorflow as tf


class Noise(keras.layers.Layer):
    def call(self, x, training=False):
        if not training:
            return x
        drawn = [
            tf.random.normal(()),
            tf.random.uniform((), seed=4),
            keras.random.normal(()),
            keras.random.normal(()),
        ]
        tf.print("drawn", *drawn)
        return x + tf.add_n(drawn)


def build_model():
    return keras.Sequential([keras.Input((2,)), Noise(), keras.layers.Dense(1)])


def compile_model(model):
    model.compile("sgd", "mse")


def training_data():
    random = np.random.default_rng(0)
    return random.normal(size=(8, 2)), random.normal(size=(8, 1))
