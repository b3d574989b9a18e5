"""Handwritten digits in mixed precision: layers compute in bfloat16, weights stay in float32."""

import keras
from sklearn import datasets, model_selection

keras.config.set_dtype_policy("mixed_bfloat16")


def build_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, dtype="float32"),  # the loss needs its digits
        ]
    )


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    train_x, _, train_y, _ = examples()
    return train_x, train_y


def evaluation_data():
    _, test_x, _, test_y = examples()
    return test_x, test_y


def examples():
    digits = datasets.load_digits()
    images = (digits.images[..., None] / 16).astype("float32")
    return model_selection.train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
