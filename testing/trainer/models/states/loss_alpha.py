"""A weight of the loss and a rate live in variables, which a callback lowers after each epoch."""

import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
STATE: dict[str, keras.Variable] = {}


@keras.saving.register_keras_serializable("states")
def weighted(y_true, y_pred):
    return STATE["alpha"] * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


@keras.saving.register_keras_serializable("states")
class AlphaSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that reads a variable."""

    def __call__(self, step):
        return STATE["rate"].value

    def get_config(self):
        return {}


def build_model():
    return keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(2)])


def compile_model(model):
    STATE["alpha"] = keras.Variable(1.0, trainable=False, name="alpha")
    STATE["rate"] = keras.Variable(0.125, trainable=False, name="rate")
    model.compile(keras.optimizers.SGD(AlphaSchedule()), weighted)


class LowerBoth(keras.callbacks.Callback):
    """Lowers both after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        STATE["alpha"].assign(STATE["alpha"] * 0.25)
        STATE["rate"].assign(STATE["rate"] * 0.5)


def callbacks():
    return [LowerBoth()]


def training_data():
    random = np.random.default_rng(0)
    return random.normal(size=(8, 3)), random.normal(size=(8, 2))
