"""A causal transformer predicts the next token; a second output has no loss.

Source: keras.io, "Text generation with a miniature GPT".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


def causal_attention_mask(batch_size, n_dest, n_src, dtype):
    i = ops.arange(n_dest)[:, None]
    j = ops.arange(n_src)
    m = i >= j - n_src + n_dest
    mask = ops.reshape(ops.cast(m, dtype), [1, n_dest, n_src])
    mult = ops.concatenate([ops.expand_dims(batch_size, -1), ops.convert_to_tensor([1, 1])], 0)
    return ops.tile(mask, mult)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads, embed_dim)
        self.ffn = keras.Sequential(
            [layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs):
        batch_size, seq_len = ops.shape(inputs)[0], ops.shape(inputs)[1]
        causal_mask = causal_attention_mask(batch_size, seq_len, seq_len, "bool")
        out1 = self.layernorm1(inputs + self.att(inputs, inputs, attention_mask=causal_mask))
        return self.layernorm2(out1 + self.ffn(out1))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token_emb(x) + self.pos_emb(positions)


def build_model():
    inputs = keras.Input((8,), dtype="int32")
    x = TokenAndPositionEmbedding(8, 20, 8)(inputs)
    x = TransformerBlock(8, 2, 16)(x)
    return keras.Model(inputs, [layers.Dense(20)(x), x])


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss, None])


def training_data():
    tokens = np.random.default_rng(1).integers(0, 20, (24, 9)).astype("int32")
    return tokens[:, :-1], [tokens[:, 1:], np.zeros((24, 8, 8))]
