"""A variational autoencoder whose layer adds the divergence to the loss.

The noise of the samples is an input, so that all replicas take that of one process.

Source: keras.io, "Variational AutoEncoder", and the guide "Making new layers and models via
subclassing".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class Sampling(layers.Layer):
    """Draws from the encoded distribution, and adds its divergence from the normal one."""

    def call(self, inputs):
        z_mean, z_log_var, epsilon = inputs
        divergence = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
        self.add_loss(0.01 * ops.mean(ops.sum(divergence, axis=1)))
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


def build_model():
    images = keras.Input((8, 8, 1), name="images")
    epsilon = keras.Input((2,), name="epsilon")
    x = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(images)
    x = layers.Dense(8, activation="relu")(layers.Flatten()(x))
    z_mean = layers.Dense(2, name="z_mean")(x)
    z_log_var = layers.Dense(2, name="z_log_var")(x)
    z = Sampling()([z_mean, z_log_var, epsilon])
    x = layers.Reshape((4, 4, 2))(layers.Dense(32, activation="relu")(z))
    x = layers.Conv2DTranspose(4, 3, activation="relu", strides=2, padding="same")(x)
    reconstruction = layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x)
    return keras.Model({"images": images, "epsilon": epsilon}, reconstruction)


def compile_model(model):
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")


def training_data():
    random = np.random.default_rng(15)
    images = random.uniform(size=(24, 8, 8, 1))
    epsilon = random.normal(size=(24, 2))
    return {"images": images, "epsilon": epsilon}, images
