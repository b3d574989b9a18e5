"""Models whose tables are looked up by rows that the batch names, and by rows that it does not."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

TOKENS, LENGTH, WIDTH = 11, 6, 4


class Positions(keras.layers.Layer):
    """Adds a trained vector to each place, as GPT and ViT do it."""

    def __init__(self, rows: Callable[[Any], Any]) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(LENGTH + 2, WIDTH)
        self.rows = rows

    def build(self, shape: Any) -> None:
        self.table.build(None)

    def call(self, x: Any) -> Any:
        return x + self.table(self.rows(x))


def static(x: Any) -> Any:
    return keras.ops.arange(LENGTH)


def repeated(x: Any) -> Any:
    """Rows that are named twice, as tables of relative places do it."""
    return keras.ops.convert_to_tensor([0, 1, 1, 2, 2, 2])


def measured(x: Any) -> Any:
    """As many rows as a batch of padded texts is long."""
    return tf.range(tf.shape(x)[1])


def broadcast(x: Any) -> Any:
    """The places of every example: in one process, too, each example names them."""
    return tf.broadcast_to(tf.range(LENGTH), tf.shape(x)[:2])


def text(rows: Callable[[Any], Any], length: int | None = LENGTH) -> keras.Model:
    tokens = keras.Input((length,), dtype="int64")
    embedded = Positions(rows)(keras.layers.Embedding(TOKENS, WIDTH)(tokens))
    hidden = keras.layers.Dense(5, "tanh")(embedded)
    return keras.Model(tokens, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))


class Twice(keras.layers.Layer):
    """One table, read by the batch's tokens and as a whole: both kinds of rows in one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(TOKENS, WIDTH)

    def build(self, shape: Any) -> None:
        self.table.build(None)

    def call(self, tokens: Any) -> Any:
        everywhere = keras.ops.mean(self.table(keras.ops.arange(3)), 0)
        return self.table(tokens) * (1 + everywhere)


def tied() -> keras.Model:
    tokens = keras.Input((LENGTH,), dtype="int64")
    hidden = keras.layers.Dense(5, "tanh")(Twice()(tokens))
    return keras.Model(tokens, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))


ALL: dict[str, Callable[[], keras.Model]] = {
    "static": lambda: text(static),
    "repeated": lambda: text(repeated),
    "measured": lambda: text(measured, None),
    "broadcast": lambda: text(broadcast),
    "tied": tied,
}


def examples() -> tuple[Any, Any, None]:
    random = np.random.default_rng(0)
    return random.integers(0, TOKENS, size=(31, LENGTH)), random.normal(size=(31, 1)), None
