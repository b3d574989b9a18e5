"""Patches of images with learned positions go through a transformer.

Source: keras.io, "Image classification with Vision Transformer".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class Patches(layers.Layer):
    def __init__(self, patch_size, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = patch_size

    def call(self, images):
        batch_size, height, width, channels = ops.shape(images)
        patches = ops.image.extract_patches(images, size=self.patch_size)
        count = (height // self.patch_size) * (width // self.patch_size)
        return ops.reshape(patches, (batch_size, count, self.patch_size**2 * channels))

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size}


@keras.saving.register_keras_serializable("public")
class PatchEncoder(layers.Layer):
    def __init__(self, num_patches, projection_dim, **kwargs):
        super().__init__(**kwargs)
        self.num_patches, self.projection_dim = num_patches, projection_dim
        self.projection = layers.Dense(projection_dim)
        self.position_embedding = layers.Embedding(num_patches, projection_dim)

    def call(self, patch):
        positions = ops.expand_dims(ops.arange(0, self.num_patches, 1), axis=0)
        return self.projection(patch) + self.position_embedding(positions)

    def get_config(self):
        return {
            **super().get_config(),
            "num_patches": self.num_patches,
            "projection_dim": self.projection_dim,
        }


def build_model():
    inputs = keras.Input((8, 8, 3))
    x = PatchEncoder(4, 8)(Patches(4)(inputs))
    for _ in range(2):
        x1 = layers.LayerNormalization(epsilon=1e-6)(x)
        x2 = x + layers.MultiHeadAttention(2, 8)(x1, x1)
        x3 = layers.LayerNormalization(epsilon=1e-6)(x2)
        for units in (16, 8):
            x3 = layers.Dense(units, activation=keras.activations.gelu)(x3)
        x = x3 + x2
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = layers.Dense(16, activation=keras.activations.gelu)(x)
    return keras.Model(inputs, layers.Dense(3)(x))


def compile_model(model):
    model.compile(
        keras.optimizers.AdamW(0.001, weight_decay=0.0001),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )


def training_data():
    random = np.random.default_rng(6)
    return random.normal(size=(24, 8, 8, 3)), random.integers(0, 3, (24, 1))
