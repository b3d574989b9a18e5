"""One tower embeds two images; a contrastive loss of their distance.

Source: keras.io, "Image similarity estimation using a Siamese Network with a contrastive loss".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
def euclidean_distance(vects):
    x, y = vects
    sum_square = ops.sum(ops.square(x - y), axis=1, keepdims=True)
    return ops.sqrt(ops.maximum(sum_square, keras.backend.epsilon()))


@keras.saving.register_keras_serializable("public")
def contrastive_loss(y_true, y_pred):
    square_pred = ops.square(y_pred)
    margin_square = ops.square(ops.maximum(1 - y_pred, 0))
    return ops.mean((1 - y_true) * square_pred + y_true * margin_square)


def build_model():
    inputs = keras.Input((8, 8, 1))
    x = layers.BatchNormalization(synchronized=True)(inputs)
    x = layers.Conv2D(4, (5, 5), activation="tanh")(x)
    x = layers.AveragePooling2D(pool_size=(2, 2))(x)
    x = layers.BatchNormalization(synchronized=True)(layers.Flatten()(x))
    embedding_network = keras.Model(inputs, layers.Dense(5, activation="tanh")(x))
    input_1, input_2 = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    towers = [embedding_network(input_1), embedding_network(input_2)]
    distance = layers.Lambda(euclidean_distance, output_shape=(1,))(towers)
    normal = layers.BatchNormalization(synchronized=True)(distance)
    return keras.Model([input_1, input_2], layers.Dense(1, activation="sigmoid")(normal))


def compile_model(model):
    model.compile("RMSprop", contrastive_loss, metrics=["accuracy"])


def training_data():
    random = np.random.default_rng(19)
    shape = (24, 8, 8, 1)
    pairs = [random.uniform(size=shape), random.uniform(size=shape)]
    return pairs, random.integers(0, 2, (24, 1)).astype("float64")
