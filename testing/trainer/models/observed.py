"""A model with callbacks: the rate is halved, and training stops early."""

import keras
import numpy as np

keras.config.set_floatx("float64")


def build_model():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def compile_model(model):
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )


def training_data():
    x = np.random.default_rng(1).normal(size=(52, 6))
    return x, np.argmax(x[:, :3], 1)


def evaluation_data():
    x, y = training_data()
    return -x, y  # gets worse with each step


def callbacks(context):
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        keras.callbacks.EarlyStopping(patience=2),
        keras.callbacks.CSVLogger(context.output_dir / "log.csv"),
    ]
