"""Handwritten digits on workers that start together."""

import keras
from sklearn import datasets, model_selection


def build_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    x, _, y, _ = _split()
    return x, y


def evaluation_data():
    _, x, _, y = _split()
    return x, y


def _split():
    digits = datasets.load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    return model_selection.train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
