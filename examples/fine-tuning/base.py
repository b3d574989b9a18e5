"""The base: a convolutional network that learns the digits 0 to 4."""

import keras
from sklearn import datasets, model_selection


def build_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(name="features"),
            keras.layers.Dense(5),
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
    digits = datasets.load_digits(n_class=5)
    images = (digits.images[..., None] / 16).astype("float32")
    return model_selection.train_test_split(images, digits.target, random_state=0)
