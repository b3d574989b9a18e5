"""A large table of embeddings: from the letters around a place in a text to the letter there."""

import zlib
from pydoc_data import topics

import keras
import numpy as np
from keras import layers

ROWS = 2**18
WIDTH = 32
LETTERS = 128
AROUND = 4
"""Letters before the place."""
EXAMPLES = 8192
HELD_OUT = 1024


def build_model():
    pieces = keras.Input((AROUND,), dtype="int32")
    x = layers.Embedding(ROWS, WIDTH)(pieces)  # 32 MiB of weights, and Adam has twice as much
    x = layers.Flatten()(x)
    x = layers.Dense(128, activation="relu")(x)
    return keras.Model(pieces, layers.Dense(LETTERS)(x))


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    x, y = _examples()
    return x[HELD_OUT:], y[HELD_OUT:]


def evaluation_data():
    x, y = _examples()
    return x[:HELD_OUT], y[:HELD_OUT]


def _examples():
    """For some places of the text the rows of the last one, two, three, four letters."""
    text = "".join(topics.topics[name] for name in sorted(topics.topics))
    text = text.encode("ascii", "replace")
    places = np.random.default_rng(0).integers(AROUND, len(text), EXAMPLES + HELD_OUT)
    rows = [
        [zlib.crc32(text[place - size : place]) % ROWS for size in range(1, AROUND + 1)]
        for place in places
    ]
    return np.array(rows, "int32"), np.array([text[place] for place in places], "int64")
