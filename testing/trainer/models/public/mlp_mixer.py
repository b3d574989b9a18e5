"""Layers that mix patches, then channels.

Source: keras.io, "Image classification with modern MLP models", the MLP-Mixer.
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class MLPMixerLayer(layers.Layer):
    def __init__(self, num_patches, hidden_units, **kwargs):
        super().__init__(**kwargs)
        self.num_patches, self.hidden_units = num_patches, hidden_units
        self.mlp1 = keras.Sequential(
            [layers.Dense(num_patches, activation="gelu"), layers.Dense(num_patches)]
        )
        self.mlp2 = keras.Sequential(
            [layers.Dense(hidden_units, activation="gelu"), layers.Dense(hidden_units)]
        )
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def build(self, input_shape):
        self.built = True

    def call(self, inputs):
        channels = ops.transpose(self.normalize(inputs), axes=(0, 2, 1))
        x = inputs + ops.transpose(self.mlp1(channels), axes=(0, 2, 1))
        return x + self.mlp2(self.normalize(x))

    def get_config(self):
        sizes = {"num_patches": self.num_patches, "hidden_units": self.hidden_units}
        return {**super().get_config(), **sizes}


def build_model():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 4, strides=4)(inputs)
    x = layers.Reshape((4, 8))(x)
    x = keras.Sequential([MLPMixerLayer(4, 8) for _ in range(2)])(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def compile_model(model):
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def training_data():
    random = np.random.default_rng(28)
    return random.normal(size=(24, 8, 8, 3)), random.integers(0, 3, 24)
