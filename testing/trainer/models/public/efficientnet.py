"""Inverted bottlenecks with squeeze and excitation, and synchronized batch normalization.

Source: keras.applications, EfficientNetB0.
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
INITIALIZER = {
    "class_name": "VarianceScaling",
    "config": {"scale": 2.0, "mode": "fan_out", "distribution": "truncated_normal"},
}


def conv(x, filters, kernel, strides=1):
    x = layers.Conv2D(
        filters, kernel, strides, "same", use_bias=False, kernel_initializer=INITIALIZER
    )(x)
    return layers.BatchNormalization(synchronized=True)(x)


def block(inputs, filters_out, expand_ratio, strides=1):
    filters = inputs.shape[-1] * expand_ratio
    x = layers.Activation("swish")(conv(inputs, filters, 1))
    if strides == 2:
        x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
    padding = "valid" if strides == 2 else "same"
    x = layers.DepthwiseConv2D(3, strides, padding, use_bias=False)(x)
    x = layers.Activation("swish")(layers.BatchNormalization(synchronized=True)(x))
    se = layers.Reshape((1, 1, filters))(layers.GlobalAveragePooling2D()(x))
    se = layers.Conv2D(2, 1, padding="same", activation="swish")(se)
    se = layers.Conv2D(filters, 1, padding="same", activation="sigmoid")(se)
    x = conv(layers.multiply([x, se]), filters_out, 1)
    return layers.add([x, inputs]) if filters_out == inputs.shape[-1] and strides == 1 else x


def build_model():
    inputs = keras.Input((16, 16, 3))
    x = layers.Rescaling(1.0 / 255.0)(inputs)
    x = layers.Activation("swish")(conv(x, 4, 3, 2))
    x = block(x, 4, 2)
    x = block(x, 6, 2, strides=2)
    x = layers.Activation("swish")(conv(x, 8, 1))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def compile_model(model):
    model.compile(keras.optimizers.RMSprop(0.001, momentum=0.9), "categorical_crossentropy")


def training_data():
    random = np.random.default_rng(11)
    images = random.integers(0, 256, (24, 16, 16, 3)).astype("float64")
    return images, np.eye(3)[random.integers(0, 3, 24)]
