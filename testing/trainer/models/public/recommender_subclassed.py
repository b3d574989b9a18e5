"""The recommender as its example writes it: a subclassed model.

Source: keras.io, "Collaborative Filtering for Movie Recommendations".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_movies, embedding_size, **kwargs):
        super().__init__(**kwargs)
        self.num_users, self.num_movies = num_users, num_movies
        self.embedding_size = embedding_size
        regularizer = keras.regularizers.l2(1e-6)
        self.user_embedding = layers.Embedding(
            num_users, embedding_size, "he_normal", embeddings_regularizer=regularizer
        )
        self.user_bias = layers.Embedding(num_users, 1)
        self.movie_embedding = layers.Embedding(
            num_movies, embedding_size, "he_normal", embeddings_regularizer=regularizer
        )
        self.movie_bias = layers.Embedding(num_movies, 1)

    def call(self, inputs):
        user_vector = self.user_embedding(inputs[:, 0])
        movie_vector = self.movie_embedding(inputs[:, 1])
        match = ops.sum(user_vector * movie_vector, axis=1, keepdims=True)
        return ops.sigmoid(match + self.user_bias(inputs[:, 0]) + self.movie_bias(inputs[:, 1]))

    def get_config(self):
        names = ("num_users", "num_movies", "embedding_size")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def build_model():
    return RecommenderNet(400, 301, 8)


def compile_model(model):
    model.compile(keras.optimizers.Adam(learning_rate=0.001), keras.losses.BinaryCrossentropy())


def training_data():
    random = np.random.default_rng(26)
    pairs = np.stack([random.integers(0, 400, 24), random.integers(0, 301, 24)], 1)
    return pairs.astype("int32"), random.uniform(size=(24, 1))
