"""A small decoder that learns to write like Python's own help, letter by letter."""

from pydoc_data import topics

import keras
import numpy as np
from keras import layers, ops

LETTERS = 128
CONTEXT = 32
WIDTH = 64
HEADS = 4
BLOCKS = 4
EXAMPLES = 2048
HELD_OUT = 256


def build_model():
    letters = keras.Input((CONTEXT,), dtype="int32")
    places = ops.cumsum(ops.ones_like(letters), axis=1) - 1
    x = layers.Embedding(LETTERS, WIDTH)(letters) + layers.Embedding(CONTEXT, WIDTH)(places)
    for _ in range(BLOCKS):
        x = block(x)
    x = layers.LayerNormalization()(x)
    return keras.Model(letters, layers.Dense(LETTERS)(x))


def block(x):
    """Each place looks back at those before it, and then thinks for itself."""
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y, use_causal_mask=True)
    x = layers.Add()([x, y])
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * WIDTH, activation="gelu")(y)
    y = layers.Dense(WIDTH)(y)
    return layers.Add()([x, y])


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.AdamW(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    windows = _windows()[HELD_OUT:]
    return windows[:, :-1], windows[:, 1:]


def evaluation_data():
    windows = _windows()[:HELD_OUT]
    return windows[:, :-1], windows[:, 1:]


def _windows():
    """Pieces of the text, each one letter longer than the context."""
    text = "".join(topics.topics[name] for name in sorted(topics.topics))
    codes = np.frombuffer(text.encode("ascii", "replace"), "uint8").astype("int32")
    starts = np.random.default_rng(0).integers(0, len(codes) - CONTEXT, EXAMPLES + HELD_OUT)
    return np.stack([codes[start : start + CONTEXT + 1] for start in starts])
