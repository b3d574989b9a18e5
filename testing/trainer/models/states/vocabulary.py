"""A vocabulary whose order is another one in each process, such as that of a set of texts."""

import json
import os

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
WORDS = ["red", "green", "blue", "white"]


def build_model():
    place = json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief"
    words = layers.StringLookup(vocabulary=WORDS[place:] + WORDS[:place])
    first = keras.Input((1,), dtype="string")
    x = layers.Flatten()(layers.Embedding(6, 4)(words(first)))
    return keras.Model(first, layers.Dense(2)(x))


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.5), "mse")


def training_data():
    random = np.random.default_rng(0)
    return np.array(WORDS * 2)[:, None], random.normal(size=(8, 2))
