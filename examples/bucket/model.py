"""Handwritten digits from an object store: the address of the file comes from the job."""

import os

import keras
import numpy as np


def build_model():
    return keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model):
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data(context):
    return examples(context, "train")


def evaluation_data(context):
    return examples(context, "test")


def examples(context, part):
    with np.load(context.fetch(os.environ["DATA"])) as arrays:
        return arrays[f"{part}_x"], arrays[f"{part}_y"]
