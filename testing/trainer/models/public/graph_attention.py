"""Nodes attend to their neighbours in graphs of equal size.

Source: keras.io, "Graph attention network (GAT) for node classification", with a graph an example.
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class GraphAttention(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[0][-1], self.units), name="kernel")
        self.kernel_attention = self.add_weight(shape=(2, self.units), name="kernel_attention")

    def call(self, inputs):
        states, edges = inputs
        transformed = ops.matmul(states, self.kernel)
        mine, others = ops.unstack(ops.einsum("bnu,ku->kbn", transformed, self.kernel_attention), 2)
        scores = ops.leaky_relu(mine[:, :, None] + others[:, None, :])
        scores = ops.softmax(ops.where(edges > 0, scores, -1e9), axis=-1)
        return ops.matmul(scores, transformed)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def build_model():
    states, edges = keras.Input((6, 5), name="states"), keras.Input((6, 6), name="edges")
    x = layers.Dense(8, activation="relu")(states)
    for _ in range(2):
        heads = [GraphAttention(4)([x, edges]) for _ in range(2)]
        x = layers.ReLU()(layers.Concatenate()(heads) + x)
    return keras.Model({"states": states, "edges": edges}, layers.Dense(3)(x))


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, weighted_metrics=["acc"])


def training_data():
    random = np.random.default_rng(38)
    edges = (random.uniform(size=(24, 6, 6)) < 0.4) | np.eye(6, dtype=bool)
    x = {"states": random.normal(size=(24, 6, 5)), "edges": edges.astype("float64")}
    return x, random.integers(0, 3, (24, 6)), random.integers(0, 2, (24, 6)).astype("float64")
