"""Convolutions and recurrent layers read characters; a layer adds the CTC loss.

Source: keras.io, "OCR model for reading Captchas".
"""

import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")


@keras.saving.register_keras_serializable("public")
class CTCLayer(layers.Layer):
    def call(self, y_true, y_pred):
        lengths = ops.full_like(y_true[:, 0], y_true.shape[1], dtype="int32")
        steps = ops.full_like(y_true[:, 0], y_pred.shape[1], dtype="int32")
        labels = ops.cast(y_true, "int32")
        self.add_loss(ops.mean(ops.ctc_loss(labels, y_pred, lengths, steps, mask_index=0)))
        return y_pred


def build_model():
    input_img = keras.Input((16, 8, 1), name="image")
    labels = keras.Input((3,), name="label")
    x = layers.Conv2D(4, 3, activation="relu", padding="same")(input_img)
    x = layers.MaxPooling2D((2, 2))(x)
    x = layers.Reshape((8, 16))(x)
    x = layers.Dense(8, activation="relu")(x)
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    return keras.Model([input_img, labels], CTCLayer()(labels, layers.Dense(6)(x)))


@keras.saving.register_keras_serializable("public")
def no_loss(_, y_pred):
    return 0.0 * ops.sum(y_pred, (1, 2))


def compile_model(model):
    # The example compiles with that of its layer alone; here a loss has to be given.
    model.compile(keras.optimizers.Adam(0.01), no_loss)


def training_data():
    random = np.random.default_rng(17)
    images, labels = random.uniform(size=(24, 16, 8, 1)), random.integers(1, 6, (24, 3))
    return (images, labels.astype("float64")), np.zeros(24)
