"""An embedding with masks (sparse gradients) and two outputs whose losses have other divisors."""

import keras
import numpy as np

keras.config.set_floatx("float64")


def build_model():
    tokens = keras.Input((7,), dtype="int64", name="tokens")
    embedded = keras.layers.Embedding(20, 5, mask_zero=True)(tokens)
    states = keras.layers.GRU(4, return_sequences=True)(embedded)
    pooled = keras.layers.GlobalAveragePooling1D()(states)
    return keras.Model(
        tokens,
        {
            "next": keras.layers.Dense(20, name="next")(states),
            "kind": keras.layers.Dense(1, name="kind")(pooled),
        },
    )


def compile_model(model):
    model.compile(
        keras.optimizers.Adam(0.02, clipnorm=0.5),
        loss={
            "next": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "kind": keras.losses.MeanSquaredError(reduction="sum"),
        },
        loss_weights={"next": 1.5, "kind": 0.1},
    )


def training_data():
    random = np.random.default_rng(3)
    tokens = random.integers(1, 20, size=(33, 7))
    lengths = random.integers(1, 8, size=33)
    tokens[np.arange(7) >= lengths[:, None]] = 0
    return tokens, {"next": np.roll(tokens, -1, 1), "kind": random.normal(size=(33, 1))}
