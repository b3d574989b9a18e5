"""A decoder with rotary positions, grouped queries, RMS norms and gated layers.

Source: KerasHub, the Llama backbone (`RotaryEmbedding`, `LlamaAttention`, `LlamaLayerNorm`).
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class RotaryEmbedding(layers.Layer):
    def call(self, inputs):
        length, features = inputs.shape[1], inputs.shape[-1]
        frequencies = 1.0 / 10000 ** (ops.arange(0, features, 2, dtype="float64") / features)
        angles = ops.arange(length, dtype="float64")[:, None] * frequencies
        angles = ops.concatenate([angles, angles], -1)[None, :, None, :]
        first, second = ops.split(inputs, 2, axis=-1)
        turned = ops.concatenate([-second, first], -1)
        return inputs * ops.cos(angles) + turned * ops.sin(angles)


@keras.saving.register_keras_serializable("public")
class LlamaAttention(layers.Layer):
    def __init__(self, query_heads, key_value_heads, **kwargs):
        super().__init__(**kwargs)
        self.query_heads, self.key_value_heads = query_heads, key_value_heads

    def build(self, shape):
        size = shape[-1] // self.query_heads

        def project(heads):
            layer = layers.EinsumDense("bqm,muh->bquh", (None, heads, size))
            layer.build(shape)
            return layer

        self.query = project(self.query_heads)
        self.key = project(self.key_value_heads)
        self.value = project(self.key_value_heads)
        self.rotary = RotaryEmbedding()
        self.output_dense = layers.EinsumDense("bquh,uhm->bqm", (None, shape[-1]))
        self.output_dense.build((*shape[:-1], self.query_heads, size))
        self.size = size

    def call(self, x):
        query, key = self.rotary(self.query(x)), self.rotary(self.key(x))
        groups = self.query_heads // self.key_value_heads
        key, value = ops.repeat(key, groups, 2), ops.repeat(self.value(x), groups, 2)
        scores = ops.einsum("bquh,bkuh->buqk", query, key) / self.size**0.5
        causal = ops.tril(ops.ones((x.shape[1], x.shape[1]), "bool"))
        scores = ops.where(causal, scores, -1e9)
        return self.output_dense(ops.einsum("buqk,bkuh->bquh", ops.softmax(scores), value))


def block(x):
    x = x + LlamaAttention(4, 2)(layers.RMSNormalization()(x))
    y = layers.RMSNormalization()(x)
    gate = layers.Dense(24, activation="silu", use_bias=False)(y)
    return x + layers.Dense(16, use_bias=False)(gate * layers.Dense(24, use_bias=False)(y))


def build_model():
    tokens = keras.Input((7,), dtype="int32")
    x = layers.Embedding(20, 16)(tokens)
    for _ in range(2):
        x = block(x)
    return keras.Model(tokens, layers.Dense(20, use_bias=False)(layers.RMSNormalization()(x)))


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01, global_clipnorm=1.0), loss)


def training_data():
    tokens = np.random.default_rng(4).integers(0, 20, (24, 8)).astype("int32")
    return tokens[:, :-1], tokens[:, 1:]
