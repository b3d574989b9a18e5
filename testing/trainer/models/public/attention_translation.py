"""A recurrent encoder and a recurrent decoder that attends to it; a loss of the user's own masks.

Source: TensorFlow, tutorial "Neural machine translation with attention".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class CrossAttention(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.mha = layers.MultiHeadAttention(key_dim=units, num_heads=1)
        self.layernorm = layers.LayerNormalization()
        self.add = layers.Add()

    def call(self, x, context):
        return self.layernorm(self.add([x, self.mha(query=x, value=context)]))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("public")
def masked_loss(y_true, y_pred):
    loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    mask = ops.cast(y_true != 0, loss.dtype)
    return ops.sum(loss * mask, -1) / ops.maximum(ops.sum(mask, -1), 1.0)


def build_model():
    context = keras.Input((7,), name="context", dtype="int64")
    target = keras.Input((6,), name="target", dtype="int64")
    encoder = layers.Bidirectional(layers.GRU(6, return_sequences=True), merge_mode="sum")
    encoded = encoder(layers.Embedding(15, 6, mask_zero=True)(context))
    x = layers.Embedding(12, 6, mask_zero=True)(target)
    x = layers.GRU(6, return_sequences=True)(x)
    return keras.Model([context, target], layers.Dense(12)(CrossAttention(6)(x, encoded)))


def compile_model(model):
    model.compile(optimizer="adam", loss=masked_loss)


def padded(random, below, length):
    tokens = random.integers(1, below, (24, length))
    tokens[np.arange(length) >= random.integers(2, length + 1, (24, 1))] = 0
    return tokens


def training_data():
    random = np.random.default_rng(33)
    target = padded(random, 12, 7)
    return [padded(random, 15, 7), target[:, :-1]], target[:, 1:]
