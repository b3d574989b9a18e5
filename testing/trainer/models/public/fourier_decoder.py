"""Fourier transforms mix tokens in the place of attention.

Source: keras.io, "Text Generation using FNet".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class FNetEncoder(layers.Layer):
    def __init__(self, embed_dim, dense_dim, **kwargs):
        super().__init__(**kwargs)
        self.embed_dim, self.dense_dim = embed_dim, dense_dim
        self.dense_proj = keras.Sequential(
            [layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()

    def call(self, inputs):
        fft_result, _ = ops.fft2((inputs, ops.zeros_like(inputs)))
        proj_input = self.layernorm_1(inputs + fft_result)
        return self.layernorm_2(proj_input + self.dense_proj(proj_input))

    def get_config(self):
        sizes = {"embed_dim": self.embed_dim, "dense_dim": self.dense_dim}
        return {**super().get_config(), **sizes}


def build_model():
    inputs = keras.Input((8,), dtype="int64")
    x = layers.Embedding(20, 8)(inputs)
    for _ in range(2):
        x = FNetEncoder(8, 12)(x)
    return keras.Model(inputs, layers.Dense(20, activation="softmax")(x))


def compile_model(model):
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


def training_data():
    tokens = np.random.default_rng(35).integers(0, 20, (24, 9))
    return tokens[:, :-1], tokens[:, 1:]
