"""A network in which rounding grows: equal in float64, so that float32 is left to explain it."""

from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import cases, ranks

pytestmark = pytest.mark.usefixtures("float64")
LAYERS = keras.layers
SIZE, EXAMPLES, BATCH = 16, 18, 6


def normalized(x: Any, layer: type[Any], filters: int) -> Any:
    """Two convolutions, each with a bias that the normalization behind it takes away again."""
    for _ in range(2):
        x = LAYERS.Activation("relu")(x)
        x = LAYERS.BatchNormalization(synchronized=True)(layer(filters, 3, padding="same")(x))
    return x


def build() -> Any:
    """A U-Net in the style of Keras' examples."""
    image = keras.Input((SIZE, SIZE, 3))
    x = LAYERS.Conv2D(4, 3, strides=2, padding="same")(image)
    x = before = LAYERS.BatchNormalization(synchronized=True)(x)
    for filters in (6, 8):
        x = normalized(x, LAYERS.SeparableConv2D, filters)
        x = LAYERS.MaxPooling2D(3, strides=2, padding="same")(x)
        x = before = x + LAYERS.Conv2D(filters, 1, strides=2)(before)
    for filters in (8, 6, 4):
        x = LAYERS.UpSampling2D(2)(normalized(x, LAYERS.Conv2DTranspose, filters))
        x = before = x + LAYERS.Conv2D(filters, 1)(LAYERS.UpSampling2D(2)(before))
    return keras.Model(image, LAYERS.Conv2D(3, 3, activation="softmax", padding="same")(x))


def compile_model(model: Any) -> None:
    model.compile(keras.optimizers.RMSprop(1e-3), "sparse_categorical_crossentropy")


@pytest.mark.long
def test_rounding_that_grows_stays_rounding() -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (EXAMPLES, SIZE, SIZE, 3)).astype("float64")
    examples = (pixels, random.integers(0, 3, (EXAMPLES, SIZE, SIZE, 1)), None)
    (member, *_), losses = ranks.run(ranks.module(build, compile_model), examples, 1, BATCH)
    (two, *_), others = ranks.run(ranks.module(build, compile_model), examples, 2, BATCH)
    assert [step.loss for step in others] == pytest.approx([step.loss for step in losses], rel=1e-9)
    weights, expected = two.model.get_weights(), member.model.get_weights()
    assert cases.difference(weights, expected, relative=False) <= 1e-9
