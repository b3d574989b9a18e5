"""An encoder predicts tokens at masked places, by the table that it reads them with.

Source: KerasHub, the BERT backbone and `MaskedLMHead`.
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
LENGTH, MASKED, WORDS, WIDTH = 9, 3, 20, 8


@keras.saving.register_keras_serializable("public")
class MaskedLMHead(layers.Layer):
    def __init__(self, token_embedding=None, **kwargs):
        super().__init__(**kwargs)
        self.token_embedding = token_embedding

    def build(self, inputs_shape, mask_positions_shape):
        self._dense = layers.Dense(WIDTH, activation="gelu")
        self._dense.build(inputs_shape)
        self._layer_norm = layers.LayerNormalization(epsilon=1e-5)
        self._layer_norm.build(inputs_shape)
        self._bias = self.add_weight(shape=(WORDS,), initializer="zeros", name="output_bias")

    def call(self, inputs, mask_positions):
        x = ops.take_along_axis(inputs, ops.expand_dims(mask_positions, -1), axis=1)
        x = self._layer_norm(self._dense(x))
        table = ops.convert_to_tensor(self.token_embedding.embeddings)
        return ops.softmax(ops.matmul(x, ops.transpose(table)) + self._bias)

    def compute_output_shape(self, inputs_shape, mask_positions_shape):
        return (*mask_positions_shape, WORDS)

    def get_config(self):
        table = keras.layers.serialize(self.token_embedding)
        return {**super().get_config(), "token_embedding": table}

    @classmethod
    def from_config(cls, config):
        config["token_embedding"] = keras.layers.deserialize(config["token_embedding"])
        return cls(**config)


def encoder(x, padding_mask):
    attended = layers.MultiHeadAttention(2, 4)(x, x, attention_mask=padding_mask[:, None, :])
    x = layers.LayerNormalization()(x + attended)
    return layers.LayerNormalization()(
        x + layers.Dense(WIDTH)(layers.Dense(16, activation="gelu")(x))
    )


def build_model():
    inputs = {
        "token_ids": keras.Input((LENGTH,), dtype="int32", name="token_ids"),
        "segment_ids": keras.Input((LENGTH,), dtype="int32", name="segment_ids"),
        "padding_mask": keras.Input((LENGTH,), dtype="int32", name="padding_mask"),
        "mask_positions": keras.Input((MASKED,), dtype="int32", name="mask_positions"),
    }
    table = layers.Embedding(WORDS, WIDTH, name="token_embedding")
    x = table(inputs["token_ids"])
    x = x + layers.Embedding(2, WIDTH)(inputs["segment_ids"])
    x = x + layers.Embedding(LENGTH, WIDTH)(ops.arange(LENGTH))
    for _ in range(2):
        x = encoder(layers.LayerNormalization()(x), inputs["padding_mask"])
    scores = MaskedLMHead(table)(x, mask_positions=inputs["mask_positions"])
    return keras.Model(inputs, scores)


def compile_model(model):
    model.compile(
        keras.optimizers.Adam(0.01),
        "sparse_categorical_crossentropy",
        weighted_metrics=["sparse_categorical_accuracy"],
    )


def training_data():
    random = np.random.default_rng(5)
    lengths = random.integers(4, LENGTH + 1, (24, 1))
    x = {
        "token_ids": random.integers(0, WORDS, (24, LENGTH)).astype("int32"),
        "segment_ids": random.integers(0, 2, (24, LENGTH)).astype("int32"),
        "padding_mask": (np.arange(LENGTH) < lengths).astype("int32"),
        "mask_positions": random.integers(0, 4, (24, MASKED)).astype("int32"),
    }
    weights = random.integers(0, 2, (24, MASKED)).astype("float64")
    return x, random.integers(0, WORDS, (24, MASKED)), weights
