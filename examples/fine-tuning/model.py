"""Fine-tuning: the layers of the base are frozen, and a new head learns the digits 5 to 9."""

import os

import keras
from sklearn import datasets, model_selection


def build_model():
    base = keras.models.load_model(os.environ["BASE"])
    features = keras.Model(base.inputs, base.get_layer("features").output)
    features.trainable = False
    return keras.Sequential([keras.Input((8, 8, 1)), features, keras.layers.Dense(5)])


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
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
    later = digits.target >= 5
    return model_selection.train_test_split(
        images[later], digits.target[later] - 5, train_size=160, random_state=0
    )
