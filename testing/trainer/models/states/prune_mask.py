"""Pruning: a layer keeps a mask of its kernel in a bool variable, which a callback sets."""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("states")
class PrunedDense(layers.Layer):
    """A dense layer with a mask, and how often it was pruned."""

    def __init__(self, units, **more):
        super().__init__(**more)
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.kept = self.add_weight(
            shape=(shape[-1], self.units),
            initializer="ones",
            dtype="bool",
            trainable=False,
            name="kept",
        )
        self.pruned = self.add_weight(
            shape=(), initializer="zeros", dtype="uint8", trainable=False, name="pruned"
        )

    def call(self, x):
        scale = 1.0 + ops.cast(self.pruned, x.dtype)
        return scale * ops.tanh(ops.matmul(x, self.kernel * ops.cast(self.kept, x.dtype)))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def build_model():
    return keras.Sequential([keras.Input((3,)), PrunedDense(4, name="pruned"), layers.Dense(2)])


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.1), "mse")


class PruneAfterEpoch(keras.callbacks.Callback):
    """Prunes after the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            layer = self.model.get_layer("pruned")
            size = abs(layer.kernel.numpy())
            layer.kept.assign(size > np.median(size))
            layer.pruned.assign(layer.pruned + 1)


def callbacks():
    return [PruneAfterEpoch()]


def training_data():
    random = np.random.default_rng(0)
    return random.normal(size=(8, 3)), random.normal(size=(8, 2))
