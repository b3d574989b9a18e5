"""Queries are scored against all items of their batch.

Source: TensorFlow Recommenders, tutorial "Recommending movies: retrieval".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


def build_model():
    user = keras.Input((1,), name="user", dtype="int32")
    movie = keras.Input((1,), name="movie", dtype="int32")
    queries = layers.Dense(6)(layers.Flatten()(layers.Embedding(50, 8)(user)))
    items = layers.Dense(6)(layers.Flatten()(layers.Embedding(40, 8)(movie)))
    scores = ops.matmul(queries, ops.transpose(items))
    return keras.Model({"user": user, "movie": movie}, scores)


@keras.saving.register_keras_serializable("public")
def in_batch_softmax(_, scores):
    labels = ops.arange(ops.shape(scores)[0])
    return keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)


def compile_model(model):
    model.compile(keras.optimizers.Adagrad(0.1), in_batch_softmax)


def training_data():
    random = np.random.default_rng(27)
    x = {
        "user": random.integers(0, 50, (24, 1)).astype("int32"),
        "movie": random.integers(0, 40, (24, 1)).astype("int32"),
    }
    return x, np.zeros(24)
