"""An encoder and a decoder with cross-attention; padding is masked in both.

Source: keras.io, "English-to-Spanish translation with a sequence-to-sequence Transformer".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class PositionalEmbedding(layers.Layer):
    def __init__(self, sequence_length, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.token_embeddings = layers.Embedding(vocab_size, embed_dim)
        self.position_embeddings = layers.Embedding(sequence_length, embed_dim)

    def call(self, inputs):
        positions = ops.arange(0, ops.shape(inputs)[-1], 1)
        return self.token_embeddings(inputs) + self.position_embeddings(positions)

    def compute_mask(self, inputs, mask=None):
        return ops.not_equal(inputs, 0)


@keras.saving.register_keras_serializable("public")
class TransformerEncoder(layers.Layer):
    def __init__(self, embed_dim, dense_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads, embed_dim)
        self.dense_proj = keras.Sequential(
            [layers.Dense(dense_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        padding_mask = None if mask is None else ops.cast(mask[:, None, :], "int32")
        attended = self.attention(inputs, inputs, inputs, attention_mask=padding_mask)
        proj_input = self.layernorm_1(inputs + attended)
        return self.layernorm_2(proj_input + self.dense_proj(proj_input))


@keras.saving.register_keras_serializable("public")
class TransformerDecoder(layers.Layer):
    def __init__(self, embed_dim, latent_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(num_heads, embed_dim)
        self.attention_2 = layers.MultiHeadAttention(num_heads, embed_dim)
        self.dense_proj = keras.Sequential(
            [layers.Dense(latent_dim, activation="relu"), layers.Dense(embed_dim)]
        )
        self.layernorm_1 = layers.LayerNormalization()
        self.layernorm_2 = layers.LayerNormalization()
        self.layernorm_3 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        inputs, encoder_outputs = inputs
        inputs_mask, encoder_mask = (None, None) if mask is None else mask
        out_1 = self.layernorm_1(
            inputs
            + self.attention_1(inputs, inputs, inputs, query_mask=inputs_mask, use_causal_mask=True)
        )
        out_2 = self.layernorm_2(
            out_1
            + self.attention_2(
                out_1,
                encoder_outputs,
                encoder_outputs,
                query_mask=inputs_mask,
                key_mask=encoder_mask,
            )
        )
        return self.layernorm_3(out_2 + self.dense_proj(out_2))


def build_model():
    encoder_inputs = keras.Input((7,), dtype="int64", name="encoder_inputs")
    x = PositionalEmbedding(7, 15, 8)(encoder_inputs)
    encoder_outputs = TransformerEncoder(8, 16, 2)(x)
    decoder_inputs = keras.Input((6,), dtype="int64", name="decoder_inputs")
    x = PositionalEmbedding(6, 12, 8)(decoder_inputs)
    x = TransformerDecoder(8, 16, 2)([x, encoder_outputs])
    outputs = layers.Dense(12, activation="softmax")(x)
    return keras.Model(
        {"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, outputs
    )


def compile_model(model):
    model.compile(
        keras.optimizers.RMSprop(0.003),
        keras.losses.SparseCategoricalCrossentropy(ignore_class=0),
        metrics=["accuracy"],
    )


def padded(random, below, length):
    tokens = random.integers(1, below, (24, length))
    tokens[np.arange(length) >= random.integers(2, length + 1, (24, 1))] = 0
    return tokens


def training_data():
    random = np.random.default_rng(3)
    english, spanish = padded(random, 15, 7), padded(random, 12, 7)
    return {"encoder_inputs": english, "decoder_inputs": spanish[:, :-1]}, spanish[:, 1:]
