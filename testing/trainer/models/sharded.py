"""A large table in shards, as docs/how-to/parameter-servers.md shows, and a grouped convolution.

Tells where each shard lies. XLA compiles the convolution, whose kernel lies on a server, too.
"""

import keras
import numpy as np

from tfparallel_trainer import layers

keras.config.set_floatx("float64")


def build_model():
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.ShardedEmbedding(30, 4, shards=4, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Reshape((2, 2)),
            keras.layers.Conv1D(2, 1, groups=2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def compile_model(model):
    for weight in model.layers[0].weights:
        print(f"{weight.name} lies at {weight.value.device}", flush=True)
    model.compile(keras.optimizers.Adam(0.01), "mse")


def training_data():
    random = np.random.default_rng(1)
    x = random.integers(0, 30, size=(40, 5))
    return x, np.mean(x % 3, axis=1, keepdims=True)
