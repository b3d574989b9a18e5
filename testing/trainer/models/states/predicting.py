"""A callback predicts and evaluates, and sets the learning rate by what that gives."""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")


class Judge(keras.callbacks.Callback):
    """Lowers the learning rate the more, the larger predictions and loss are."""

    def on_epoch_end(self, epoch, logs=None):
        x, y = training_data()
        size = np.mean(np.abs(self.model.predict(x, batch_size=3, verbose=0)))
        loss = self.model.evaluate(x, y, batch_size=9, verbose=0)
        self.model.optimizer.learning_rate.assign(0.1 / (1 + size + loss))


def build_model():
    return keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(2)])


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.1), "mse")


def callbacks():
    return [Judge()]


def training_data():
    random = np.random.default_rng(0)
    return random.normal(size=(9, 3)), random.normal(size=(9, 2))
