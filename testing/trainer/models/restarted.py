"""A model with the kinds of state in CASES, which a restart may lose; it pauses to be killed."""

import os
import time

import keras
import numpy as np

keras.config.set_floatx("float64")
CASES = frozenset(os.environ.get("CASES", "").split(","))
PAUSE = int(os.environ.get("PAUSE", "0"))
STATE: dict[str, keras.Variable] = {}


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
class Masked(keras.layers.Layer):
    """Lets through what a callback chooses, in a variable of type bool."""

    def build(self, shape):
        self.kept = self.add_weight(
            shape=(shape[-1],), initializer="ones", dtype="bool", trainable=False, name="kept"
        )

    def call(self, x):
        return x * keras.ops.cast(self.kept, x.dtype)


@keras.saving.register_keras_serializable("restarted")
class Annealed(keras.losses.MeanSquaredError):
    """Its weight may be a variable of the module, which a callback lowers."""

    def call(self, y_true, y_pred):
        return STATE.get("weight", 1.0) * super().call(y_true, y_pred)


@keras.saving.register_keras_serializable("restarted")
class Called(Annealed):
    """Counts positive targets only, in `__call__`."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        is_positive = keras.ops.cast(y_true > 0.0, y_pred.dtype)
        return super().__call__(y_true * is_positive, y_pred * is_positive, sample_weight)


@keras.saving.register_keras_serializable("restarted")
class Discriminative(keras.optimizers.AdamW):
    """Gives the layer below a tenth of its gradients."""

    def apply(self, grads, trainable_variables=None):
        factors = [0.1 if "below" in variable.path else 1.0 for variable in trainable_variables]
        scaled = [gradient * factor for gradient, factor in zip(grads, factors, strict=True)]
        super().apply(scaled, trainable_variables)


def build_model():
    below = keras.layers.Dense(4, "tanh", bias_initializer="ones", name="below")
    if "assigned" in CASES:
        below = keras.layers.SpectralNormalization(below, name="spectral")
    inputs = keras.Input((3,))
    x = below(inputs)
    if "counted" in CASES:
        x = Counted(name="counted")(x)
    if "drawn" in CASES:
        x = keras.layers.Dropout(0.0, seed=1)(x)
    if "masked" in CASES:
        x = Masked(name="masked")(x)
    x = keras.layers.Dense(4, "tanh", name="above")(x)
    outputs = keras.layers.Dense(2, bias_initializer="ones", name="a")(x)
    if "headless" not in CASES:
        return keras.Model(inputs, outputs)
    other = keras.layers.Dense(2, bias_initializer="ones", name="b")(x)
    return keras.Model(inputs, {"a": outputs, "b": other})


def compile_model(model):
    rates = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.9)
    optimizer = (Discriminative if "path" in CASES else keras.optimizers.AdamW)(
        rates if "scheduled" in CASES else 0.05,
        weight_decay=0.1,
        global_clipnorm=None if "path" in CASES else 1.0,
        use_ema="averaged" in CASES,
        gradient_accumulation_steps=2 if "accumulated" in CASES else None,
    )
    if "excluded" in CASES:
        optimizer.exclude_from_weight_decay(var_list=[model.get_layer("above").kernel])
    if "annealed" in CASES:
        STATE["weight"] = keras.Variable(1.0, trainable=False, name="weight")
    loss = Called() if "called" in CASES else Annealed() if "annealed" in CASES else "mse"
    model.compile(optimizer, {"a": loss} if "headless" in CASES else loss)


class Change(keras.callbacks.Callback):
    """Sets after the first epoch what the steps of all others read, and freezes a layer."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch > 0:
            return
        if "masked" in CASES:
            self.model.get_layer("masked").kept.assign([True, False, True, True])
        if "annealed" in CASES:
            STATE["weight"].assign(0.5)
        if "frozen" in CASES:
            self.model.get_layer("above").trainable = False


class Pause(keras.callbacks.Callback):
    """Waits after a number of steps until its process is ended."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == PAUSE:
            print("paused for processes to be ended", flush=True)
            time.sleep(100.0)


def callbacks():
    changing = [Change()] if CASES & {"masked", "annealed", "frozen"} else []
    return [*changing, Pause()] if PAUSE else changing


def training_data():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)), random.normal(size=(12, 2))
    return x, {"a": y, "b": y} if "headless" in CASES else y
