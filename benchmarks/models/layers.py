"""Equal wide layers, one after the other: they divide evenly, and their weights are what counts."""

import os

import keras
import numpy as np

COUNT = 16
WIDTH = int(os.environ["BENCHMARK_WIDTH"])


def build_model():
    layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(COUNT)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers])


def compile_model(model):
    model.compile(keras.optimizers.SGD(1e-3), "mse")


def training_data():
    x = np.random.default_rng(0).normal(size=(int(os.environ["BENCHMARK_EXAMPLES"]), WIDTH))
    return x.astype(np.float32), np.tanh(x).astype(np.float32)
