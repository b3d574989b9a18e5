"""The models that all competitors train, for any Keras, and their data.

A `keras` argument is the module `keras` or `tf_keras`, so that Keras 2 builds the same layers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

WORDS, LENGTH, WIDTH, HEADS, BLOCKS = 8000, 128, 256, 8, 4
ROWS, TABLE_WIDTH, IDS = 200_000, 32, 20
LAYERS, FEATURES = 20, 64
STACK, STACK_WIDTH = 16, 1024
MICROBATCHES = 8
"""Of a batch in a pipeline."""
EPSILON = 1e-3
"""Of a normalization, Keras' default."""


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """What is trained, and on how much in each epoch."""

    title: str
    build: Callable[[Any], Any]
    """From Keras, an unbuilt model of logits or, for the stack, of values."""
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    """Draws x and y of so many examples."""
    batch: int
    steps: int
    """Of an epoch."""
    loss: str
    """`classes`, `binary` or `squares`."""
    learning_rate: float
    is_adam: bool = True


def _convolutions(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def _dense(keras: Any) -> Any:
    hidden = [keras.layers.Dense(FEATURES, activation="relu") for _ in range(LAYERS - 1)]
    return keras.Sequential([keras.Input((FEATURES,)), *hidden, keras.layers.Dense(FEATURES)])


def _decoder(keras: Any) -> Any:
    """As in GPT-2 (Radford et al. 2019), without positions."""
    layers = keras.layers
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(tokens)
    for _ in range(BLOCKS):
        normal = layers.LayerNormalization(epsilon=EPSILON)(x)
        mixed = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(
            normal, normal, use_causal_mask=True
        )
        x = layers.Add()([x, mixed])
        normal = layers.LayerNormalization(epsilon=EPSILON)(x)
        wide = layers.Dense(4 * WIDTH, activation="gelu")(normal)
        x = layers.Add()([x, layers.Dense(WIDTH)(wide)])
    x = layers.LayerNormalization(epsilon=EPSILON)(x)
    return keras.Model(tokens, layers.Dense(WORDS)(x))


def _embedding(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((IDS,), dtype="int32"),
            layers.Embedding(ROWS, TABLE_WIDTH),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(1),
        ]
    )


def _stack(keras: Any) -> Any:
    layers = [keras.layers.Dense(STACK_WIDTH, activation="tanh") for _ in range(STACK)]
    return keras.Sequential([keras.Input((STACK_WIDTH,)), *layers])


def _draw_images(drawn: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return _normal(drawn, (count, 28, 28, 1)), drawn.integers(10, size=count, dtype=np.int64)


def _draw_features(drawn: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return _normal(drawn, (count, FEATURES)), drawn.integers(FEATURES, size=count, dtype=np.int64)


def _draw_text(drawn: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = drawn.integers(WORDS, size=(count, LENGTH + 1), dtype=np.int32)
    return tokens[:, :-1], tokens[:, 1:].astype(np.int64)


def _draw_ids(drawn: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    ids = drawn.integers(ROWS, size=(count, IDS), dtype=np.int32)
    return ids, drawn.integers(2, size=(count, 1)).astype(np.float32)


def _draw_values(drawn: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    x = _normal(drawn, (count, STACK_WIDTH))
    return x, np.tanh(x)


def _normal(drawn: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return drawn.normal(size=shape).astype(np.float32)


MODELS = {
    "cnn": Model("CNN, batch 128", _convolutions, _draw_images, 128, 60, "classes", 1e-3),
    "dense": Model(
        "20 dense layers of 64, batch 128", _dense, _draw_features, 128, 200, "classes", 1e-3
    ),
    "decoder": Model(
        "decoder, 4 blocks of 256, batch 16", _decoder, _draw_text, 16, 6, "classes", 1e-3
    ),
    "embedding": Model(
        "embedding 200,000 x 32, batch 256, SGD",
        _embedding,
        _draw_ids,
        256,
        150,
        "binary",
        0.1,
        is_adam=False,
    ),
    "stack": Model(
        "16 dense layers of 1,024, batch 4,096, SGD",
        _stack,
        _draw_values,
        4096,
        2,
        "squares",
        1e-3,
        is_adam=False,
    ),
}


def optimizer(keras: Any, model: Model) -> Any:
    """The optimizer of Keras for a model."""
    if model.is_adam:
        return keras.optimizers.Adam(model.learning_rate)
    return keras.optimizers.SGD(model.learning_rate)


def loss(keras: Any, model: Model, reduction: str) -> Any:
    """The loss of Keras for a model."""
    if model.loss == "classes":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    if model.loss == "binary":
        return keras.losses.BinaryCrossentropy(from_logits=True, reduction=reduction)
    return keras.losses.MeanSquaredError(reduction=reduction)


def draw(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw the examples of an epoch of a model."""
    model = MODELS[name]
    return model.draw(np.random.default_rng(0), model.batch * model.steps)
