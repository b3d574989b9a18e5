"""Large tables of users and films, with biases, and the product of their vectors.

Source: keras.io, "Collaborative Filtering for Movie Recommendations", as a functional model.
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
USERS, MOVIES = 4000, 3001


def table(rows, size):
    return layers.Embedding(
        rows, size, embeddings_initializer="he_normal", embeddings_regularizer=None
    )


def build_model():
    inputs = keras.Input((2,), dtype="int32")
    user, movie = inputs[:, 0], inputs[:, 1]
    match = layers.Dot(axes=1)([table(USERS, 16)(user), table(MOVIES, 16)(movie)])
    x = match + table(USERS, 1)(user) + table(MOVIES, 1)(movie)
    return keras.Model(inputs, layers.Activation("sigmoid")(x))


def compile_model(model):
    model.compile(keras.optimizers.Adam(learning_rate=0.001), keras.losses.BinaryCrossentropy())


def training_data():
    random = np.random.default_rng(25)
    users, movies = random.integers(0, USERS, 24), random.integers(0, MOVIES, 24)
    users[3:9], movies[5:11] = users[3], movies[5]
    return np.stack([users, movies], 1).astype("int32"), random.uniform(size=(24, 1))
