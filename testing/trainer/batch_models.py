"""Models in which dimension 0 of a tensor is not the batch, or not alone."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

LAYERS, OPS = keras.layers, keras.ops
SIZE, WIDTH = 8, 4


def windows() -> Any:
    """Attention within windows of an image, which become examples (Swin)."""
    image = keras.Input((SIZE, SIZE, 3))
    x = LAYERS.Conv2D(WIDTH, 3, padding="same", activation="tanh")(image)
    half = SIZE // 2
    x = OPS.reshape(x, (-1, 2, half, 2, half, WIDTH))
    x = OPS.reshape(OPS.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, half * half, WIDTH))
    x = x + LAYERS.MultiHeadAttention(2, 2)(x, x)
    x = LAYERS.Dense(WIDTH, "gelu")(LAYERS.LayerNormalization()(x))
    x = OPS.transpose(OPS.reshape(x, (-1, 2, 2, half, half, WIDTH)), (0, 1, 3, 2, 4, 5))
    x = LAYERS.Conv2D(2, 3, activation="tanh")(OPS.reshape(x, (-1, SIZE, SIZE, WIDTH)))
    return keras.Model(image, LAYERS.Dense(1)(LAYERS.Flatten()(x)))


def rows() -> Any:
    """Features of which groups become examples."""
    first = keras.Input((SIZE,))
    x = OPS.reshape(LAYERS.Dense(SIZE, "tanh")(first), (-1, WIDTH))
    x = OPS.reshape(LAYERS.Dense(WIDTH, "tanh")(x), (-1, SIZE))
    return keras.Model(first, LAYERS.Dense(1)(x))


def steps() -> Any:
    """Steps of a sequence that become examples behind a convolution."""
    first = keras.Input((SIZE, 3))
    x = OPS.reshape(LAYERS.Conv1D(WIDTH, 3, padding="same")(first), (-1, WIDTH))
    x = OPS.reshape(LAYERS.Dense(WIDTH, "tanh")(x), (-1, SIZE, WIDTH))
    return keras.Model(first, LAYERS.Dense(1)(LAYERS.Flatten()(x)))


def time_first() -> Any:
    """A sequence whose time leads, and its batch follows."""
    first = keras.Input((SIZE, 3))
    x = OPS.transpose(LAYERS.Dense(WIDTH)(first), (1, 0, 2))
    x = LAYERS.Dense(WIDTH, "tanh")(OPS.cumsum(x, axis=0))
    x = OPS.transpose(x, (1, 0, 2))
    return keras.Model(first, LAYERS.Dense(1)(LAYERS.Flatten()(x)))


class Table(keras.layers.Layer):
    """Gives a trained vector for each place of a sequence, once for all examples."""

    def build(self, shape: Any) -> None:
        self.vectors = self.add_weight(shape=(1, *shape[1:]), initializer="normal")

    def call(self, x: Any) -> Any:
        return self.vectors * 2.0


class Waves(keras.layers.Layer):
    """Gives a fixed vector for each place of a sequence, once for all examples."""

    def call(self, x: Any) -> Any:
        places = OPS.arange(OPS.shape(x)[1], dtype=x.dtype)[:, None]
        return OPS.sin(places * OPS.arange(1, x.shape[-1] + 1, dtype=x.dtype))


def of_places(layer: type[Any]) -> Any:
    first = keras.Input((SIZE, 3))
    x = LAYERS.Dense(WIDTH, "tanh")(first)
    x = LAYERS.Dense(WIDTH, "tanh")(x + layer()(x))
    return keras.Model(first, LAYERS.Dense(1)(LAYERS.Flatten()(x)))


ALL: dict[str, Callable[[], Any]] = {
    "windows": windows,
    "rows": rows,
    "steps": steps,
    "time first": time_first,
    "table": lambda: of_places(Table),
    "waves": lambda: of_places(Waves),
}


def examples(model: Any) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(26, *model.input.shape[1:])), random.normal(size=(26, 1))
