"""The models of the truth table; each has its data, and what else it covers."""

from typing import Any

import keras
import numpy as np
from sklearn import datasets

EXAMPLES = 70


def random(*shape):
    return np.random.default_rng(list(shape)).normal(size=(EXAMPLES, *shape))


def integers(below, *shape):
    return np.random.default_rng([below, *shape]).integers(0, below, size=(EXAMPLES, *shape))


def positive(*shape):
    return np.abs(random(*shape)) + 0.1


def mlp():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, "tanh", kernel_regularizer="l2"),
            keras.layers.Dense(8, "gelu"),
            keras.layers.Dense(3, "softmax"),
        ]
    )


def cnn():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(6, 3, activation="tanh"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, "softmax"),
        ]
    )


def normalised(synchronized):
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            # A bias before a normalisation has no gradient but rounding, which Adam makes large.
            keras.layers.Conv2D(4, 3, use_bias=False),
            keras.layers.BatchNormalization(synchronized=synchronized),
            keras.layers.Activation("relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(8, use_bias=False),
            keras.layers.BatchNormalization(synchronized=synchronized),
            keras.layers.Dense(3, "softmax"),
        ]
    )


def lstm():
    return keras.Sequential(
        [
            keras.Input((7, 3)),
            keras.layers.Masking(),
            keras.layers.LSTM(6, return_sequences=True),
            keras.layers.Dense(2),
        ]
    )


def transformer():
    tokens = keras.Input((6,), dtype="int64")
    states = keras.layers.Embedding(12, 8)(tokens)
    states += keras.layers.Embedding(6, 8)(keras.ops.arange(6))
    attended = keras.layers.MultiHeadAttention(2, 4)(states, states)
    states = keras.layers.LayerNormalization()(states + attended)
    inner = keras.layers.Dense(8)(keras.layers.Dense(16, "gelu")(states))
    states = keras.layers.LayerNormalization()(states + inner)
    return keras.Model(tokens, keras.layers.Dense(12, "softmax")(states))


def branches():
    wide = keras.Input((5,), name="wide")
    deep = keras.Input((4,), name="deep")
    both = keras.layers.Concatenate()([wide, keras.layers.Dense(6, "relu")(deep)])
    outputs = {
        "value": keras.layers.Dense(1, name="value")(both),
        "kind": keras.layers.Dense(3, "softmax", name="kind")(both),
    }
    return keras.Model({"wide": wide, "deep": deep}, outputs)


def embedding():
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int64"),
            keras.layers.Embedding(15, 4, mask_zero=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )


def residual(layers, _):
    """A network of this many dense layers, for the images of digits."""
    first = keras.Input((64,))
    states = keras.layers.Dense(32, "tanh")(first)
    for _ in range(layers - 2):
        states += keras.layers.Dense(32, "tanh")(states)
    return keras.Model(first, keras.layers.Dense(10, "softmax")(states))


def digits():
    x, y = datasets.load_digits(return_X_y=True)
    return x[:280] / 16, y[:280]


def sequences():
    x = random(7, 3)
    lengths = integers(7) + 1
    x[np.arange(7) >= lengths[:, None]] = 0
    return x, random(7, 2)


def shifted():
    tokens = integers(12, 6)
    return tokens, np.roll(tokens, -1, 1)


def both_outputs():
    y = {"value": random(1), "kind": integers(3)}
    return {"wide": random(5), "deep": random(4)}, y


CLASSES = "sparse_categorical_crossentropy"

ROWS: list[Any] = [  # name, what else, build (synchronized), loss, data, SGD's arguments, Adam's
    (
        "MLP",
        "sample weights, L2, global_clipnorm or weight decay",
        lambda _: mlp(),
        CLASSES,
        lambda: (random(6), integers(3), positive()),
        {"global_clipnorm": 0.3},
        {"weight_decay": 0.02},
    ),
    (
        "CNN",
        "clipnorm or clipvalue",
        lambda _: cnn(),
        CLASSES,
        lambda: (random(8, 8, 1), integers(3)),
        {"clipnorm": 0.1},
        {"clipvalue": 0.02},
    ),
    (
        "synchronized BatchNormalization",
        "convolution",
        normalised,
        CLASSES,
        lambda: (random(6, 6, 1), integers(3)),
        {},
        {},
    ),
    ("LSTM", "masks", lambda _: lstm(), "mse", sequences, {}, {}),
    (
        "Transformer",
        "no dropout; EMA",
        lambda _: transformer(),
        CLASSES,
        shifted,
        {"use_ema": True},
        {"use_ema": True, "ema_overwrite_frequency": 7},
    ),
    (
        "two inputs, two outputs",
        "accumulation over 2 steps",
        lambda _: branches(),
        {"value": "mse", "kind": CLASSES},
        both_outputs,
        {"gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 2},
    ),
    (
        "embedding",
        "masks, sparse gradients",
        lambda _: embedding(),
        "mse",
        lambda: (integers(15, 5), random(1)),
        {},
        {"clipnorm": 0.5},
    ),
]
