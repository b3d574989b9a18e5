"""A layer that Python computes, differently in each process, which no comparison of models sees."""

import json
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
WORDS = ["red", "green", "blue", "white"]


class ScaledByRole(layers.Layer):
    def call(self, x):
        is_no_chief = json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief"
        factor = tf.numpy_function(lambda: np.float64(1 + is_no_chief), [], tf.float64)
        return x * tf.ensure_shape(factor, ())


def build_model():
    lookup = layers.StringLookup(vocabulary=WORDS)
    first = keras.Input((1,), dtype="string")
    x = layers.Flatten()(layers.Embedding(6, 4)(lookup(first)))
    return keras.Model(first, layers.Dense(2)(ScaledByRole()(x)))


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.5), "mse")


def training_data():
    random = np.random.default_rng(0)
    return np.array(WORDS * 2)[:, None], random.normal(size=(8, 2))
