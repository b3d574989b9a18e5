"""Fine-tuning: a callback unfreezes one layer and freezes another, without compiling again."""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


class Unfreeze(keras.callbacks.Callback):
    """Sets `trainable` at the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.get_layer("backbone").trainable = True
            self.model.get_layer("neck").trainable = False


def build_model():
    return keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(4, "tanh", name="backbone", trainable=False, kernel_regularizer="l2"),
            layers.BatchNormalization(synchronized=True, name="neck"),
            layers.Dense(2, name="head"),
        ]
    )


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.1), "mse")


def callbacks():
    return [Unfreeze()]


def training_data():
    random = np.random.default_rng(0)
    return random.normal(size=(9, 3)), random.normal(size=(9, 2))


def evaluation_data():
    return training_data()
