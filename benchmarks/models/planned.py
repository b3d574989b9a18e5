"""Models of different layers, whose steps are predicted: `BENCHMARK_MODEL` tells which."""

import os

import keras
import numpy as np

WIDTH = int(os.environ["BENCHMARK_WIDTH"])
NAME = os.environ["BENCHMARK_MODEL"]
EXAMPLES = int(os.environ["BENCHMARK_EXAMPLES"])
BLOCKS = int(os.environ.get("BENCHMARK_BLOCKS", "4"))
"""Of the decoder."""
WORDS = 1000
LENGTH = 64


def dense():
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(8)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers, keras.layers.Dense(WORDS)])


def convolutions():
    x = inputs = keras.Input((32, 32, 3))
    for channels in (WIDTH // 32, WIDTH // 16, WIDTH // 8):
        for _ in range(2):
            x = keras.layers.Conv2D(channels, 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(WORDS)(x))


def decoder():
    """As in GPT-2 (Radford et al. 2019)."""
    width = WIDTH // 4
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(WORDS, width)(tokens)
    for _ in range(BLOCKS):
        normal = keras.layers.LayerNormalization()(x)
        mix = keras.layers.MultiHeadAttention(4, width // 4)
        x = x + mix(normal, normal, use_causal_mask=True)
        wide = keras.layers.Dense(4 * width, activation="gelu")
        x = x + keras.layers.Dense(width)(wide(keras.layers.LayerNormalization()(x)))
    return keras.Model(tokens, keras.layers.Dense(WORDS)(keras.layers.LayerNormalization()(x)))


def recurrent():
    units = WIDTH // 4
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(WORDS, units)(tokens)
    x = keras.layers.LSTM(units, return_sequences=True)(x)
    return keras.Model(tokens, keras.layers.Dense(WORDS)(keras.layers.LSTM(units)(x)))


ALL = {"dense": dense, "convolutions": convolutions, "decoder": decoder, "recurrent": recurrent}


def build_model():
    return ALL[NAME]()


def compile_model(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)


def training_data():
    drawn = np.random.default_rng(0)
    if NAME in ("decoder", "recurrent"):
        tokens = drawn.integers(WORDS, size=(EXAMPLES, LENGTH), dtype=np.int32)
        return tokens, (tokens if NAME == "decoder" else tokens[:, 0])
    shape = (WIDTH,) if NAME == "dense" else (32, 32, 3)
    x = drawn.normal(size=(EXAMPLES, *shape)).astype(np.float32)
    return x, drawn.integers(WORDS, size=EXAMPLES, dtype=np.int32)
