"""A router sends each token to one expert, and a loss of the layer balances them.

Source: keras.io, "Text classification with Switch Transformer".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
EXPERTS = 2


@keras.saving.register_keras_serializable("public")
class Switch(layers.Layer):
    """A router with its experts; all tokens go through all, and the gate chooses."""

    def build(self, shape):
        self.route = layers.Dense(EXPERTS)
        self.route.build(shape)
        self.experts = [layers.Dense(shape[-1], activation="relu") for _ in range(EXPERTS)]
        for expert in self.experts:
            expert.build(shape)

    def call(self, inputs):
        router_probs = ops.softmax(self.route(inputs), axis=-1)
        expert_mask = ops.one_hot(ops.argmax(router_probs, -1), EXPERTS, dtype=inputs.dtype)
        density = ops.mean(expert_mask, axis=(0, 1))
        density_proxy = ops.mean(router_probs, axis=(0, 1))
        self.add_loss(0.1 * ops.mean(density_proxy * density) * EXPERTS**2)
        gates = router_probs * expert_mask
        outputs = ops.stack([expert(inputs) for expert in self.experts], -1)
        return ops.sum(outputs * ops.expand_dims(gates, -2), -1)


def build_model():
    inputs = keras.Input((8,), dtype="int32")
    x = layers.Embedding(20, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.LayerNormalization()(x + Switch()(x))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(2, activation="softmax")(x))


def compile_model(model):
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")


def training_data():
    random = np.random.default_rng(36)
    return random.integers(0, 20, (24, 8)).astype("int32"), random.integers(0, 2, 24)
