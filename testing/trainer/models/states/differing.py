"""A model in which one process has another vocabulary, as a set of texts gives it."""

import json
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
TEXTS = ["red", "green", "blue", "white", "black", "brown", "pink", "grey"]


def build_strategy():
    return tf.distribute.MultiWorkerMirroredStrategy()


def build_model():
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    order = TEXTS if task["type"] == "chief" else TEXTS[::-1]
    lookup = layers.StringLookup(vocabulary=order, name="lookup")
    first = keras.Input((1,), dtype="string")
    x = layers.Embedding(10, 4)(lookup(first))
    return keras.Model(first, layers.Dense(2)(layers.Flatten()(x)))


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.5), "mse")


def training_data():
    random = np.random.default_rng(0)
    return np.array(TEXTS * 2)[:, None], random.normal(size=(16, 2))
