"""A model with BatchNormalization, and its examples."""

from typing import Any

import keras
import numpy as np

BATCH = 6


def build() -> keras.Model:
    return keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), last()]
    )


def last() -> keras.layers.Layer:
    return keras.layers.Dense(1)


def compile_model(model: keras.Model) -> None:
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])


def examples() -> tuple[Any, Any, None]:
    random = np.random.default_rng(0)
    return random.normal(size=(5 * BATCH, 3)), random.normal(size=(5 * BATCH, 1)), None
