"""Two networks against each other, with a training step and two optimizers of their own.

Source: keras.io, "DCGAN to generate face images".
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class GAN(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Flatten(),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        self.generator = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(32),
                layers.Reshape((4, 4, 2)),
                layers.Conv2DTranspose(4, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(1, 5, padding="same", activation="sigmoid"),
            ]
        )
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, images):
        return self.discriminator(images)

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile(optimizer=d_optimizer, loss=loss_fn)
        self.g_optimizer, self.loss_fn = g_optimizer, loss_fn

    def train_step(self, data):
        images, _ = data
        batch_size = tf.shape(images)[0]
        noise = keras.random.normal((batch_size, 4), seed=self.seed_generator)
        combined = tf.concat([self.generator(noise), images], axis=0)
        labels = tf.concat([tf.ones((batch_size, 1)), tf.zeros((batch_size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        weights = self.discriminator.trainable_weights
        self.optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            fakes = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(tf.zeros((batch_size, 1)), fakes)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        return {"d_loss": d_loss, "g_loss": g_loss}


def build_model():
    return GAN()


def compile_model(model):
    model.compile(
        keras.optimizers.Adam(0.0001),
        keras.optimizers.Adam(0.0001),
        keras.losses.BinaryCrossentropy(),
    )


def training_data():
    random = np.random.default_rng(42)
    images = random.uniform(size=(24, 8, 8, 1))
    return images, np.zeros(24)
