"""Columns of texts are looked up and attended; columns of numbers are normalized.

Source: keras.io, "Structured data learning with TabTransformer".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
VOCABULARIES = {
    "workclass": ["Private", "State-gov", "Self-emp"],
    "education": ["Bachelors", "HS-grad", "Masters", "Doctorate"],
    "gender": ["Female", "Male"],
}
NUMBERS = ("age", "hours_per_week")


def build_model():
    inputs = {name: keras.Input((1,), name=name, dtype="string") for name in VOCABULARIES}
    inputs |= {name: keras.Input((1,), name=name, dtype="float64") for name in NUMBERS}
    encoded = []
    for name, vocabulary in VOCABULARIES.items():
        lookup = layers.StringLookup(vocabulary=vocabulary, mask_token=None, num_oov_indices=0)
        encoded.append(layers.Embedding(len(vocabulary), 8)(lookup(inputs[name])))
    x = ops.concatenate(encoded, axis=1)
    x = x + layers.Embedding(len(VOCABULARIES), 8)(ops.arange(len(VOCABULARIES)))
    attended = layers.MultiHeadAttention(2, 8)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([attended, x]))
    feedforward = layers.Dense(8)(layers.Dense(8, activation="gelu")(x))
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([feedforward, x]))
    numerical = layers.concatenate([inputs[name] for name in NUMBERS])
    numerical = layers.LayerNormalization(epsilon=1e-6)(numerical)
    features = layers.concatenate([layers.Flatten()(x), numerical])
    features = layers.Dense(16, activation="selu")(features)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(features))


def compile_model(model):
    model.compile(
        keras.optimizers.AdamW(0.001, weight_decay=0.0001),
        keras.losses.BinaryCrossentropy(),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
    )


def training_data():
    random = np.random.default_rng(21)
    x = {name: random.choice(vocabulary, (24, 1)) for name, vocabulary in VOCABULARIES.items()}
    x |= {name: random.normal(size=(24, 1)) for name in NUMBERS}
    return x, random.integers(0, 2, (24, 1)), random.uniform(0.5, 2.0, 24)
