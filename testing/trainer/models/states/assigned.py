"""Layers that assign weights while they train: a kernel, a count, and a codebook of the batch."""

import keras
import numpy as np
from keras import layers, ops

from tfparallel_trainer.layers import sum_over_replicas

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("states")
class AnnealedLayer(layers.Layer):
    """Weighs what it adds to the loss by how often it was trained."""

    def build(self, _):
        self.count = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.count.assign_add(1)
            self.add_loss(0.01 * ops.cast(self.count, x.dtype) * ops.mean(ops.square(x)))
        return x


@keras.saving.register_keras_serializable("states")
class Centers(layers.Layer):
    """Follows the sum of its inputs and their number over the whole batch."""

    def build(self, sizes):
        self.total = self.add_weight(shape=sizes[1:], initializer="zeros", trainable=False)
        self.count = self.add_weight(shape=(), initializer="ones", trainable=False)
        self.center = self.add_weight(shape=sizes[1:], initializer="zeros", trainable=False)

    def call(self, x, training=False):
        centered = x - self.center
        if training:
            ones = ops.ones_like(x[:, 0])
            total, count = sum_over_replicas((ops.sum(x, 0), ops.sum(ones)))
            self.total.assign(0.9 * self.total + total)
            self.count.assign(0.9 * self.count + count)
            self.center.assign(self.total / self.count)
        return centered


def build_model():
    return keras.Sequential(
        [
            keras.Input((3,)),
            layers.SpectralNormalization(layers.Dense(4, "tanh")),
            AnnealedLayer(),
            Centers(),
            layers.Dense(2),
        ]
    )


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.1), "mse")


def training_data():
    random = np.random.default_rng(0)
    return random.normal(size=(9, 3)), random.normal(size=(9, 2))
