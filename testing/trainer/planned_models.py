"""Models that are planned, not trained."""

from collections.abc import Callable
from typing import Any

import keras

LAYERS = keras.layers


def decoder(blocks: int = 4, width: int = 64, length: int = 32, vocabulary_size: int = 500) -> Any:
    """As in GPT-2 (Radford et al. 2019)."""
    tokens = keras.Input((length,), dtype="int32")
    rows = LAYERS.Embedding(vocabulary_size, width)(tokens)
    for _ in range(blocks):
        normal = LAYERS.LayerNormalization()(rows)
        mixed = LAYERS.MultiHeadAttention(4, width // 4)(normal, normal, use_causal_mask=True)
        rows = LAYERS.Add()([rows, mixed])
        inner = LAYERS.Dense(4 * width, activation="gelu")(LAYERS.LayerNormalization()(rows))
        rows = LAYERS.Add()([rows, LAYERS.Dense(width)(inner)])
    return keras.Model(tokens, LAYERS.Dense(vocabulary_size)(LAYERS.LayerNormalization()(rows)))


def lstm() -> Any:
    return keras.Sequential(
        [
            keras.Input((20,), dtype="int32"),
            LAYERS.Embedding(500, 32),
            LAYERS.LSTM(64, return_sequences=True),
            LAYERS.LSTM(64),
            LAYERS.Dense(500),
        ]
    )


def convolutions() -> Any:
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            LAYERS.Conv2D(32, 3, padding="same", activation="relu"),
            LAYERS.BatchNormalization(),
            LAYERS.Conv2D(32, 3, padding="same", activation="relu"),
            LAYERS.MaxPooling2D(),
            LAYERS.Conv2D(64, 3, padding="same", activation="relu"),
            LAYERS.MaxPooling2D(),
            LAYERS.Flatten(),
            LAYERS.Dense(256, activation="relu"),
            LAYERS.Dense(10),
        ]
    )


def perceptron() -> Any:
    layers = [LAYERS.Dense(1000, activation="relu") for _ in range(4)]
    return keras.Sequential([keras.Input((1000,)), *layers, LAYERS.Dense(10)])


def pooled() -> Any:
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            LAYERS.Conv2D(16, 3, padding="same", activation="relu"),
            LAYERS.Conv2D(16, 3, padding="same", activation="relu"),
            LAYERS.MaxPooling2D(),
            LAYERS.Conv2D(32, 3, padding="same", activation="relu"),
            LAYERS.GlobalAveragePooling2D(),
            LAYERS.Dense(10),
        ]
    )


def separable() -> Any:
    """As in ConvNeXt (Liu et al. 2022)."""
    first = keras.Input((32, 32, 3))
    x = LAYERS.LayerNormalization()(LAYERS.Conv2D(48, 4, strides=4)(first))
    for _ in range(2):
        branch = LAYERS.LayerNormalization()(LAYERS.DepthwiseConv2D(7, padding="same")(x))
        branch = LAYERS.Dense(48)(LAYERS.Dense(192, activation="gelu")(branch))
        x = LAYERS.Add()([x, branch])
    return keras.Model(first, LAYERS.Dense(10)(LAYERS.GlobalAveragePooling2D()(x)))


def _application(name: str) -> Callable[[], Any]:
    return lambda: getattr(keras.applications, name)(weights=None)


APPLICATIONS = (
    *("VGG16", "ResNet50", "InceptionV3", "MobileNetV2", "DenseNet121", "Xception"),
    *("EfficientNetB0", "NASNetMobile", "ConvNeXtTiny"),
)
REAL: dict[str, Callable[[], Any]] = {
    **{name: _application(name) for name in APPLICATIONS},
    "decoder": decoder,
    "lstm": lstm,
}
"""Models as people train them."""
