"""Crosses of all features beside a deep network.

Source: keras.io, "Structured data learning with Wide, Deep, and Cross networks".
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
AREAS = ["Rawah", "Neota", "Comanche", "Cache"]


def build_model():
    numbers = {name: keras.Input((1,), name=name) for name in ("elevation", "aspect", "slope")}
    area = keras.Input((1,), name="area", dtype="string")
    soil = keras.Input((1,), name="soil", dtype="int64")
    looked_up = layers.StringLookup(vocabulary=AREAS)(area)
    soils = layers.IntegerLookup(vocabulary=[2702, 2703, 2704, 2705, 2706])(soil)
    encoded = [
        layers.Reshape((4,))(layers.Embedding(len(AREAS) + 1, 4)(looked_up)),
        layers.CategoryEncoding(num_tokens=6, output_mode="one_hot")(soils),
    ]
    x0 = layers.concatenate([*numbers.values(), *encoded])
    cross = layers.BatchNormalization(synchronized=True)(x0)
    x0 = cross
    for _ in range(2):
        cross = x0 * layers.Dense(cross.shape[-1])(cross) + cross
    deep = x0
    for units in (12, 8):
        deep = layers.Dense(units)(deep)
        deep = layers.ReLU()(layers.BatchNormalization(synchronized=True)(deep))
    merged = layers.concatenate([cross, deep])
    outputs = layers.Dense(4, activation="softmax")(merged)
    return keras.Model({**numbers, "area": area, "soil": soil}, outputs)


def compile_model(model):
    model.compile(
        keras.optimizers.Adam(0.001),
        keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )


def training_data():
    random = np.random.default_rng(22)
    x = {name: random.normal(size=(24, 1)) for name in ("elevation", "aspect", "slope")}
    areas = random.choice([*AREAS, "elsewhere"], (24, 1))
    soils = random.integers(2702, 2708, (24, 1))
    return {**x, "area": areas, "soil": soils}, random.integers(0, 4, (24, 1))
