"""Blocks of a depthwise convolution, a wide layer and global response normalization.

Source: keras.applications, ConvNeXt, with the GRN of ConvNeXt V2.
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class GlobalResponseNormalization(layers.Layer):
    def build(self, shape):
        self.gamma = self.add_weight(shape=(shape[-1],), initializer="normal")
        self.beta = self.add_weight(shape=(shape[-1],), initializer="zeros")

    def call(self, x):
        norms = ops.sqrt(ops.sum(x**2, axis=(1, 2), keepdims=True) + 1e-6)
        scaled = norms / (ops.mean(norms, axis=-1, keepdims=True) + 1e-6)
        return self.gamma * (x * scaled) + self.beta + x


@keras.saving.register_keras_serializable("public")
class LayerScale(layers.Layer):
    def build(self, shape):
        start = keras.initializers.Constant(0.1)
        self.gamma = self.add_weight(shape=(shape[-1],), initializer=start)

    def call(self, x):
        return x * self.gamma


def block(x, width):
    y = layers.DepthwiseConv2D(7, padding="same")(x)
    y = layers.LayerNormalization(epsilon=1e-6)(y)
    y = layers.Dense(4 * width)(y)
    y = layers.Activation("gelu")(y)
    y = GlobalResponseNormalization()(y)
    return x + LayerScale()(layers.Dense(width)(y))


def build_model():
    inputs = keras.Input((16, 16, 3))
    x = layers.Normalization(mean=[0.5, 0.4, 0.4], variance=[0.05, 0.05, 0.05])(inputs)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Conv2D(6, 4, strides=4)(x))
    x = block(x, 6)
    x = layers.Conv2D(8, 2, strides=2)(layers.LayerNormalization(epsilon=1e-6)(x))
    x = block(x, 8)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def compile_model(model):
    model.compile(keras.optimizers.AdamW(0.004), "sparse_categorical_crossentropy")


def training_data():
    random = np.random.default_rng(8)
    return random.uniform(size=(24, 16, 16, 3)), random.integers(0, 3, 24)
