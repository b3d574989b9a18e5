"""A transformer block over tokens and positions classifies texts.

Source: keras.io, "Text classification with Transformer".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential(
            [layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        out1 = self.layernorm1(inputs + self.att(inputs, inputs))
        return self.layernorm2(out1 + self.ffn(out1))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(vocab_size, embed_dim)
        self.pos_emb = layers.Embedding(maxlen, embed_dim)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token_emb(x) + self.pos_emb(positions)


def build_model():
    inputs = keras.Input((10,), dtype="int64")
    x = TokenAndPositionEmbedding(10, 30, 8)(inputs)
    x = TransformerBlock(8, 2, 16)(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(20, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(x))


def compile_model(model):
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


def training_data():
    random = np.random.default_rng(0)
    return random.integers(0, 30, (24, 10)), random.integers(0, 2, 24)
