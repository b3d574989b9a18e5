"""Depthwise separable blocks with hard swishes and squeeze and excitation.

Source: keras.applications, MobileNetV3Small.
"""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


def hard_sigmoid(x):
    return layers.ReLU(6.0)(x + 3.0) * (1.0 / 6.0)


def hard_swish(x):
    return layers.Activation("hard_swish")(x)


def normalized(x):
    return layers.BatchNormalization(epsilon=1e-3, momentum=0.999, synchronized=True)(x)


def inverted_res_block(x, expansion, filters, stride, use_se):
    shortcut, infilters = x, x.shape[-1]
    x = hard_swish(normalized(layers.Conv2D(infilters * expansion, 1, use_bias=False)(x)))
    x = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(x)
    x = hard_swish(normalized(x))
    if use_se:
        se = layers.GlobalAveragePooling2D(keepdims=True)(x)
        se = layers.ReLU()(layers.Conv2D(4, 1)(se))
        se = hard_sigmoid(layers.Conv2D(infilters * expansion, 1)(se))
        x = layers.Multiply()([x, se])
    x = normalized(layers.Conv2D(filters, 1, use_bias=False)(x))
    return layers.Add()([shortcut, x]) if stride == 1 and infilters == filters else x


def build_model():
    inputs = keras.Input((16, 16, 3))
    x = layers.Rescaling(scale=1.0 / 127.5, offset=-1.0)(inputs)
    x = hard_swish(normalized(layers.Conv2D(4, 3, 2, "same", use_bias=False)(x)))
    x = inverted_res_block(x, 2, 4, 1, use_se=True)
    x = inverted_res_block(x, 2, 6, 2, use_se=False)
    x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = hard_swish(layers.Conv2D(8, 1)(x))
    x = layers.Flatten()(layers.Conv2D(3, 1)(x))
    return keras.Model(inputs, layers.Activation("softmax")(x))


def compile_model(model):
    model.compile(keras.optimizers.Adam(0.002), "sparse_categorical_crossentropy")


def training_data():
    random = np.random.default_rng(12)
    images = random.integers(0, 256, (24, 16, 16, 3)).astype("float64")
    return images, random.integers(0, 3, 24)
