"""Models with state that a restart may lose, one for each CASE; pauses for who ends processes."""

import os
import time

import keras
import numpy as np

keras.config.set_floatx("float64")
CASE = os.environ.get("CASE", "all")
PAUSE = int(os.environ.get("PAUSE", "0"))


@keras.saving.register_keras_serializable("restarted")
class Counted(keras.layers.Layer):
    """Counts its calls in training, and weights what it adds to the loss by that."""

    def build(self, _):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, x, training=False):
        if training:
            self.count.assign(self.count + 1.0)
            self.add_loss(0.01 * self.count * keras.ops.mean(keras.ops.square(x)))
        return x


@keras.saving.register_keras_serializable("restarted")
class Discriminative(keras.optimizers.AdamW):
    """Gives the layer below a tenth of its gradients."""

    def apply(self, grads, trainable_variables=None):
        factors = [0.1 if "below" in one.path else 1.0 for one in trainable_variables]
        scaled = [one * factor for one, factor in zip(grads, factors, strict=True)]
        super().apply(scaled, trainable_variables)


def build_model():
    below = keras.layers.Dense(4, "tanh", bias_initializer="ones", name="below")
    if CASE in ("assigned", "all"):
        below = keras.layers.SpectralNormalization(below, name="spectral")
    inputs = keras.Input((3,))
    x = below(inputs)
    if CASE in ("counted", "all"):
        x = Counted(name="counted")(x)
    if CASE in ("drawn", "all"):
        x = keras.layers.Dropout(0.0, seed=1)(x)
    x = keras.layers.Dense(4, "tanh", name="above")(x)
    outputs = keras.layers.Dense(2, bias_initializer="ones", name="a")(x)
    if CASE != "headless":
        return keras.Model(inputs, outputs)
    other = keras.layers.Dense(2, bias_initializer="ones", name="b")(x)
    return keras.Model(inputs, {"a": outputs, "b": other})


def compile_model(model):
    rates = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.9)
    optimizer = (Discriminative if CASE == "path" else keras.optimizers.AdamW)(
        rates if CASE in ("scheduled", "all") else 0.05,
        weight_decay=0.1,
        global_clipnorm=None if CASE == "path" else 1.0,
        use_ema=CASE == "averaged",
        gradient_accumulation_steps=2 if CASE == "accumulated" else None,
    )
    if CASE in ("excluded", "all"):
        optimizer.exclude_from_weight_decay(var_list=[model.get_layer("above").kernel])
    model.compile(optimizer, {"a": "mse"} if CASE == "headless" else "mse")


class Pause(keras.callbacks.Callback):
    """Waits after a number of steps until its process is ended."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == PAUSE:
            print("paused for processes to be ended", flush=True)
            time.sleep(100.0)


def callbacks():
    return [Pause()] if PAUSE else []


def training_data():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)), random.normal(size=(12, 2))
    return x, {"a": y, "b": y} if CASE == "headless" else y
