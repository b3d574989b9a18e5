"""A decoder whose table of tokens also gives the scores of the next token.

Source: KerasHub, `ReversibleEmbedding`, `TransformerDecoder` and the GPT-2 backbone.
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class ReversibleEmbedding(layers.Embedding):
    """An embedding that also maps back from vectors to scores of tokens."""

    def call(self, inputs, reverse=False):
        if reverse:
            return ops.matmul(inputs, ops.transpose(ops.convert_to_tensor(self.embeddings)))
        return super().call(inputs)

    def compute_output_spec(self, inputs, reverse=False):
        last = self.input_dim if reverse else self.output_dim
        shape = inputs.shape[:-1] if reverse else inputs.shape
        return keras.KerasTensor((*shape, last), self.compute_dtype)


@keras.saving.register_keras_serializable("public")
class PositionEmbedding(layers.Layer):
    def build(self, shape):
        self.position_embeddings = self.add_weight(shape=shape[1:], initializer="glorot_uniform")

    def call(self, inputs):
        return ops.broadcast_to(self.position_embeddings, ops.shape(inputs))


def decoder(x):
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)
    y = layers.LayerNormalization()(x)
    return x + layers.Dense(8)(layers.Dense(16, activation="gelu")(y))


def build_model():
    tokens = keras.Input((8,), dtype="int32", name="token_ids")
    table = ReversibleEmbedding(20, 8, name="token_embedding")
    x = table(tokens)
    x = x + PositionEmbedding()(x)
    for _ in range(2):
        x = decoder(x)
    return keras.Model(tokens, table(layers.LayerNormalization()(x), reverse=True))


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.01), loss)


def training_data():
    tokens = np.random.default_rng(2).integers(0, 20, (24, 9)).astype("int32")
    return tokens[:, :-1], tokens[:, 1:], (tokens[:, 1:] != 0).astype("float64")
