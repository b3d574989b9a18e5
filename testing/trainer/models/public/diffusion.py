"""A network learns to tell noise from images in a training step of its own.

Source: keras.io, "Denoising Diffusion Implicit Models".
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.config.set_floatx("float64")


def get_network():
    noisy_images = keras.Input((8, 8, 1))
    noise_variances = keras.Input((1, 1, 1))
    e = ops.concatenate([ops.sin(10 * noise_variances), ops.cos(10 * noise_variances)], axis=3)
    e = layers.UpSampling2D(size=8, interpolation="nearest")(e)
    x = layers.Concatenate()([layers.Conv2D(4, 1)(noisy_images), e])
    x = layers.Conv2D(6, 3, padding="same", activation="swish")(x)
    return keras.Model([noisy_images, noise_variances], layers.Conv2D(1, 1)(x))


@keras.saving.register_keras_serializable("public")
class DiffusionModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.network = get_network()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, inputs):
        return self.network(inputs)

    def train_step(self, data):
        images, noises = data
        shape = (tf.shape(images)[0], 1, 1, 1)
        times = keras.random.uniform(shape, seed=self.seed_generator)
        signal_rates, noise_rates = ops.cos(times), ops.sin(times)
        noisy_images = signal_rates * images + noise_rates * noises
        with tf.GradientTape() as tape:
            predicted = self.network([noisy_images, noise_rates**2])
            noise_loss = ops.mean(self.loss(noises, predicted))
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        return {"n_loss": noise_loss}


def build_model():
    return DiffusionModel()


def compile_model(model):
    model.compile(keras.optimizers.AdamW(1e-3), keras.losses.mean_absolute_error)


def training_data():
    random = np.random.default_rng(41)
    return random.uniform(size=(24, 8, 8, 1)), random.normal(size=(24, 8, 8, 1))
