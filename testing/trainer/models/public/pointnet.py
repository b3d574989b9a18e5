"""Points are turned by a learned matrix that a regularizer keeps orthogonal.

Source: keras.io, "Point cloud classification with PointNet".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class OrthogonalRegularizer(keras.regularizers.Regularizer):
    def __init__(self, num_features, l2reg=0.001):
        self.num_features, self.l2reg = num_features, l2reg

    def __call__(self, x):
        x = ops.reshape(x, (-1, self.num_features, self.num_features))
        xxt = ops.tensordot(x, x, axes=(2, 2))
        xxt = ops.reshape(xxt, (-1, self.num_features, self.num_features))
        return ops.sum(self.l2reg * ops.square(xxt - ops.eye(self.num_features)))

    def get_config(self):
        return {"num_features": self.num_features, "l2reg": self.l2reg}


def conv_bn(x, filters):
    x = layers.Conv1D(filters, kernel_size=1, padding="valid")(x)
    return layers.Activation("relu")(layers.BatchNormalization(momentum=0.0, synchronized=True)(x))


def dense_bn(x, filters):
    x = layers.Dense(filters)(x)
    return layers.Activation("relu")(layers.BatchNormalization(momentum=0.0, synchronized=True)(x))


def tnet(inputs, num_features):
    x = layers.GlobalMaxPooling1D()(conv_bn(inputs, 6))
    x = layers.Dense(
        num_features * num_features,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(np.eye(num_features).flatten()),
        activity_regularizer=OrthogonalRegularizer(num_features),
    )(dense_bn(x, 6))
    feat_t = layers.Reshape((num_features, num_features))(x)
    return layers.Dot(axes=(2, 1))([inputs, feat_t])


def build_model():
    inputs = keras.Input((16, 3))
    x = conv_bn(tnet(inputs, 3), 6)
    x = layers.GlobalMaxPooling1D()(conv_bn(x, 8))
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(dense_bn(x, 8)))


def compile_model(model):
    model.compile(keras.optimizers.Adam(0.001), "sparse_categorical_crossentropy")


def training_data():
    random = np.random.default_rng(29)
    return random.normal(size=(24, 16, 3)), random.integers(0, 3, 24)
