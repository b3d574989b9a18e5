"""Channels become pixels of a larger image.

Source: keras.io, "Image Super-Resolution using an Efficient Sub-Pixel CNN".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class DepthToSpace(layers.Layer):
    def __init__(self, block_size, **kwargs):
        super().__init__(**kwargs)
        self.block_size = block_size

    def call(self, inputs):
        batch, height, width, depth = ops.shape(inputs)
        depth = depth // self.block_size**2
        x = ops.reshape(inputs, [batch, height, width, self.block_size, self.block_size, depth])
        x = ops.transpose(x, [0, 1, 3, 2, 4, 5])
        return ops.reshape(x, [batch, height * self.block_size, width * self.block_size, depth])

    def get_config(self):
        return {**super().get_config(), "block_size": self.block_size}


def build_model():
    conv_args = {"activation": "relu", "kernel_initializer": "orthogonal", "padding": "same"}
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(6, 5, **conv_args)(inputs)
    x = layers.Conv2D(4, 3, **conv_args)(x)
    x = layers.Conv2D(4, 3, **conv_args)(x)
    return keras.Model(inputs, DepthToSpace(2)(x))


def compile_model(model):
    model.compile(keras.optimizers.Adam(0.001), keras.losses.MeanSquaredError())


def training_data():
    random = np.random.default_rng(32)
    return random.uniform(size=(24, 8, 8, 1)), random.uniform(size=(24, 16, 16, 1))
