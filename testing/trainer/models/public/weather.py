"""Convolutions over time, whose residual is added to the last value.

Source: TensorFlow, tutorial "Time series forecasting", as a residual model of several steps.
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
def last_values(series):
    return series[:, -6:, :]


def build_model():
    inputs = keras.Input((12, 4))
    x = layers.Lambda(last_values, output_shape=(6, 4))(inputs)
    x = layers.Conv1D(8, activation="relu", kernel_size=3, padding="causal")(x)
    x = layers.Conv1D(8, activation="relu", kernel_size=4, dilation_rate=1)(x)
    x = layers.LSTM(6)(x)
    delta = layers.Reshape((3, 4))(layers.Dense(12, kernel_initializer="zeros")(x))
    last = layers.RepeatVector(3)(inputs[:, -1])
    return keras.Model(inputs, layers.Add()([last, delta]))


def compile_model(model):
    model.compile(
        loss=keras.losses.MeanSquaredError(),
        optimizer=keras.optimizers.Adam(0.01),
        metrics=[keras.metrics.MeanAbsoluteError()],
    )


def training_data():
    series = np.random.default_rng(37).normal(size=(24, 15, 4)).cumsum(1)
    return series[:, :12], series[:, 12:]
