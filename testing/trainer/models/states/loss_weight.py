"""A weight of the loss, a rate and a temperature live in variables, which a callback lowers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
STATE: dict[str, keras.Variable] = {}


@keras.saving.register_keras_serializable("states")
class ModuleWeighted(keras.losses.Loss):
    """Its weight is an attribute of its own, and another one of the module."""

    def __init__(self, **more):
        super().__init__(**more)
        self.weight = tf.Variable(1.0, dtype="float64", trainable=False, name="weight")

    def call(self, y_true, y_pred):
        error = keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
        return self.weight * STATE["alpha"] * error


@keras.saving.register_keras_serializable("states")
class Heated(layers.Layer):
    """Divides by a temperature that it does not track."""

    def call(self, x):
        return x / STATE["temperature"]


@keras.saving.register_keras_serializable("states")
class Chosen(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that reads a variable."""

    def __call__(self, step):
        return STATE["rate"].value

    def get_config(self):
        return {}


def build_model():
    STATE["temperature"] = keras.Variable(1.0, trainable=False, name="temperature")
    return keras.Sequential([keras.Input((3,)), layers.Dense(4, "tanh"), Heated(), layers.Dense(2)])


def compile_model(model):
    STATE["alpha"] = keras.Variable(1.0, trainable=False, name="alpha")
    STATE["rate"] = keras.Variable(0.1, trainable=False, name="rate")
    model.compile(keras.optimizers.SGD(Chosen()), ModuleWeighted())


class Lower(keras.callbacks.Callback):
    """Lowers all of them after each epoch, and keeps a count that no step reads."""

    def __init__(self):
        super().__init__()
        self.count = tf.Variable(0.0, trainable=False)

    def on_epoch_end(self, epoch, logs=None):
        self.count.assign_add(1.0)
        self.model.loss.weight.assign(self.model.loss.weight * 0.5)
        for variable in STATE.values():
            variable.assign(variable * 0.75)


def callbacks():
    return [Lower()]


def training_data():
    random = np.random.default_rng(0)
    return random.normal(size=(8, 3)), random.normal(size=(8, 2))
