"""A data set whose order is another one in every process."""

import os

import keras
import numpy as np
import tensorflow as tf


def build_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def compile_model(model):
    model.compile("sgd", "mse")


def training_data():
    x = np.random.default_rng(os.getpid()).normal(size=(40, 1))
    return tf.data.Dataset.from_tensor_slices((x, x))
