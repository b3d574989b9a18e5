"""The network of a diffusion model, whose noise and noise levels come with the data.

Source: keras.io, "Denoising Diffusion Implicit Models", with Keras' own training step.
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
def sinusoidal_embedding(x):
    frequencies = ops.exp(ops.linspace(np.log(1.0), np.log(100.0), 4, dtype="float64"))
    angular_speeds = 2.0 * np.pi * frequencies
    return ops.concatenate([ops.sin(angular_speeds * x), ops.cos(angular_speeds * x)], axis=3)


def residual_block(x, width):
    residual = x if x.shape[3] == width else layers.Conv2D(width, kernel_size=1)(x)
    x = layers.BatchNormalization(center=False, scale=False, synchronized=True)(x)
    x = layers.Conv2D(width, kernel_size=3, padding="same", activation="swish")(x)
    x = layers.Conv2D(width, kernel_size=3, padding="same")(x)
    return layers.Add()([x, residual])


def build_model():
    noisy_images = keras.Input((8, 8, 1), name="noisy_images")
    noise_variances = keras.Input((1, 1, 1), name="noise_variances")
    e = layers.Lambda(sinusoidal_embedding, output_shape=(1, 1, 8))(noise_variances)
    e = layers.UpSampling2D(size=8, interpolation="nearest")(e)
    x = layers.Concatenate()([layers.Conv2D(4, kernel_size=1)(noisy_images), e])
    skip = x = residual_block(x, 6)
    x = residual_block(layers.AveragePooling2D(pool_size=2)(x), 8)
    x = layers.UpSampling2D(size=2, interpolation="bilinear")(x)
    x = residual_block(layers.Concatenate()([x, skip]), 6)
    x = layers.Conv2D(1, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model({"noisy_images": noisy_images, "noise_variances": noise_variances}, x)


def compile_model(model):
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=1e-4), "mean_absolute_error")


def training_data():
    random = np.random.default_rng(16)
    images = random.uniform(size=(24, 8, 8, 1))
    noises, angles = random.normal(size=images.shape), random.uniform(0.1, 1.4, (24, 1, 1, 1))
    x = {
        "noisy_images": np.cos(angles) * images + np.sin(angles) * noises,
        "noise_variances": np.sin(angles) ** 2,
    }
    return x, noises
