"""Calls of fit, each with its model, that both Keras' fit and ours make."""

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class FitCase:
    build: Callable[[], Any]
    """Gives a compiled model, always with the same weights."""
    data: Callable[[], dict[str, Any]]
    """Gives x, y and perhaps sample_weight."""
    arguments: Callable[[], dict[str, Any]] = dict
    """Gives the other arguments, with new callbacks."""
    tolerance: float = 1e-10
    """Largest difference that a sum over ranks makes; it shows in numbers of half precision."""


def rows(count=52):
    x = np.random.default_rng(1).normal(size=(count, 6))
    return x, np.argmax(x[:, :3], 1)


def numbers():
    x, y = rows()
    return {"x": x, "y": y}


def weighted():
    return {**numbers(), "sample_weight": np.random.default_rng(2).uniform(0.2, 2.0, size=52)}


def validation():
    x, y = rows(80)
    return x[52:], y[52:]


def classifier(optimizer=None, **compiled):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2"),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        **{
            "optimizer": optimizer or keras.optimizers.Adam(0.02),
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
            **compiled,
        }
    )
    return model


def mixed(policy, optimizer):
    """Layers that compute in half precision, batches whose size divides numbers exactly."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh", dtype=policy),
            keras.layers.Dense(3, dtype=policy),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def scaled(initial_scale):
    inner = keras.optimizers.SGD(0.2, momentum=0.5)
    return keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=initial_scale, dynamic_growth_steps=5
    )


def two_ways():
    keras.utils.set_random_seed(3)
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    hidden = keras.layers.Dense(8, activation="tanh")(joined)
    model = keras.Model(
        {"left": left, "right": right},
        {
            "kind": keras.layers.Dense(3, name="kind")(hidden),
            "size": keras.layers.Dense(1, name="size")(hidden),
        },
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        {
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "size": keras.losses.MeanSquaredError(),
        },
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": ["accuracy"], "size": ["mean_absolute_error"]},
    )
    return model


def two_ways_data():
    x, y = rows()
    return {
        "x": {"left": x[:, :4], "right": x[:, 4:]},
        "y": {"kind": y, "size": x.sum(1, keepdims=True)},
    }


def peculiar(y_true, y_pred):
    truth = keras.ops.one_hot(keras.ops.cast(keras.ops.reshape(y_true, (-1,)), "int32"), 3)
    return keras.ops.mean(keras.ops.square(truth - y_pred), -1) ** 1.5


def data_set():
    x, y = rows()
    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(15)}


def endless():
    x, y = rows()
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return {"x": data.shuffle(20, seed=4, reshuffle_each_iteration=False).repeat().batch(15)}


def generator():
    x, y = rows()

    def go():
        while True:
            for first in range(0, 52, 15):
                yield x[first : first + 15], y[first : first + 15]

    return {"x": go()}


def changing_lengths():
    random = np.random.default_rng(9)
    lengths = itertools.cycle((4, 7, 2, 7, 1))

    def go():
        for length in lengths:
            x = random.normal(size=(15, length, 6))
            yield x, (np.arange(15) + length) % 3

    return {"x": go()}


def of_sequences():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, 6))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3)(pooled))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    return model


class Parts(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.x, self.y = rows()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        part = slice(15 * index, 15 * index + 15)
        return self.x[part], self.y[part], np.linspace(0.5, 2.0, len(self.y[part]))


class Decay(keras.callbacks.Callback):
    """A callback of one's own that changes the learning rate and the weights within an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        optimizer.learning_rate = float(optimizer.learning_rate.numpy()) * 0.9
        if batch == 2:
            self.model.layers[-1].bias.assign(self.model.layers[-1].bias * 0.5)
        if logs["loss"] < 0.2:
            self.model.stop_training = True


class Exchange(keras.callbacks.Callback):
    """Freezes a layer at the second epoch and lets another one train, without compiling again."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            first, last = self.model.layers
            first.trainable, last.trainable = False, True


def half_frozen():
    model = classifier()
    model.layers[-1].trainable = False
    model.compile(keras.optimizers.Adam(0.02), model.loss, metrics=["accuracy"])
    return model


def swapped():
    return classifier(keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.8))


def spoilt():
    x, y = rows()
    x[40] = np.nan
    return {"x": x, "y": y}


def calls(*factories, **more):
    """Arguments with new callbacks each time."""
    return lambda: simple(
        validation_data=validation(), callbacks=[factory() for factory in factories], **more
    )()


def place(name=""):
    return os.path.join(tempfile.mkdtemp(prefix="fitted-"), name)


def simple(**arguments):
    return lambda: {"batch_size": 15, "epochs": 3, **arguments}


CASES = {
    "batch_size": FitCase(classifier, numbers, simple()),
    "default_batch_size": FitCase(classifier, numbers, lambda: {"epochs": 2}),
    "epochs": FitCase(classifier, numbers, simple(epochs=12)),
    "initial_epoch": FitCase(classifier, numbers, simple(initial_epoch=1)),
    "class_weight": FitCase(classifier, numbers, simple(class_weight={0: 1.0, 1: 3.0})),
    "sample_weight": FitCase(
        lambda: classifier(weighted_metrics=["sparse_categorical_accuracy"]), weighted, simple()
    ),
    "validation_data": FitCase(classifier, numbers, lambda: simple(validation_data=validation())()),
    "validation_split": FitCase(classifier, weighted, simple(validation_split=0.25)),
    "validation_freq": FitCase(
        classifier, numbers, simple(epochs=4, validation_split=0.25, validation_freq=[1, 3])
    ),
    "validation_steps": FitCase(
        classifier,
        numbers,
        simple(validation_split=0.5, validation_batch_size=4, validation_steps=3),
    ),
    "steps_per_epoch": FitCase(classifier, numbers, simple(epochs=5, steps_per_epoch=3)),
    "data_set": FitCase(
        classifier,
        data_set,
        lambda: {
            "epochs": 3,
            "class_weight": {0: 1.0, 2: 3.0},
            "validation_data": data_set()["x"],
            "validation_steps": 2,
        },
    ),
    "endless_data_set": FitCase(classifier, endless, lambda: {"epochs": 3, "steps_per_epoch": 5}),
    "generator": FitCase(classifier, generator, lambda: {"epochs": 3, "steps_per_epoch": 6}),
    "changing_lengths": FitCase(
        of_sequences, changing_lengths, lambda: {"epochs": 2, "steps_per_epoch": 5}
    ),
    "PyDataset": FitCase(classifier, lambda: {"x": Parts()}, lambda: {"epochs": 2}),
    "EarlyStopping": FitCase(
        lambda: classifier(keras.optimizers.SGD(3.0)),
        numbers,
        lambda: simple(
            epochs=9,
            validation_data=validation(),
            callbacks=[keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)],
        )(),
    ),
    "LearningRateScheduler": FitCase(
        classifier,
        numbers,
        lambda: simple(
            callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)]
        )(),
    ),
    "several_callbacks": FitCase(
        lambda: classifier(keras.optimizers.SGD(3.0)),
        lambda: {"x": Parts()},
        lambda: {
            "epochs": 9,
            "validation_data": validation(),
            "callbacks": [
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
                keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
            ],
        },
    ),
    "ReduceLROnPlateau": FitCase(
        lambda: classifier(keras.optimizers.SGD(2.0)),
        numbers,
        lambda: simple(
            epochs=6,
            callbacks=[keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.3)],
        )(),
    ),
    "Callback": FitCase(classifier, numbers, lambda: simple(callbacks=[Decay()])()),
    "trainable": FitCase(half_frozen, numbers, calls(Exchange)),
    "two_inputs_two_outputs": FitCase(
        # Keras weighs the losses of single outputs by batches of one size only.
        two_ways,
        two_ways_data,
        simple(batch_size=13, validation_split=0.25),
    ),
    "custom_loss": FitCase(lambda: classifier(loss=peculiar), numbers, simple()),
    "gradient_accumulation": FitCase(
        lambda: classifier(keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)),
        numbers,
        simple(),
    ),
    "clipping": FitCase(
        lambda: classifier(keras.optimizers.SGD(0.5, global_clipnorm=0.1)), numbers, simple()
    ),
    "schedule": FitCase(
        lambda: classifier(
            keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5))
        ),
        numbers,
        simple(),
    ),
    "mixed_bfloat16": FitCase(
        lambda: mixed("mixed_bfloat16", keras.optimizers.SGD(0.2, momentum=0.5)),
        numbers,
        lambda: simple(batch_size=16, epochs=6, validation_data=validation())(),
        tolerance=5e-3,
    ),
    "mixed_float16": FitCase(
        lambda: mixed("mixed_float16", scaled(2.0**10)),
        numbers,
        simple(batch_size=16, epochs=6),
        tolerance=1e-3,
    ),
    "mixed_float16_that_overflows": FitCase(
        lambda: mixed("mixed_float16", scaled(2.0**22)),
        numbers,
        simple(batch_size=16, epochs=6),
    ),
    "averages": FitCase(swapped, numbers, calls()),
    "SwapEMAWeights": FitCase(swapped, numbers, calls(keras.callbacks.SwapEMAWeights)),
    "CSVLogger": FitCase(
        classifier, numbers, calls(lambda: keras.callbacks.CSVLogger(place("log.csv")))
    ),
    "History": FitCase(classifier, numbers, calls(keras.callbacks.History)),
    "LambdaCallback": FitCase(
        classifier,
        numbers,
        calls(lambda: keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)),
    ),
    "ModelCheckpoint": FitCase(
        classifier, numbers, calls(lambda: keras.callbacks.ModelCheckpoint(place("model.keras")))
    ),
    "ProgbarLogger": FitCase(classifier, numbers, calls(keras.callbacks.ProgbarLogger)),
    "RemoteMonitor": FitCase(
        classifier, numbers, calls(lambda: keras.callbacks.RemoteMonitor("http://127.0.0.1:9"))
    ),
    "TensorBoard": FitCase(
        classifier, numbers, calls(lambda: keras.callbacks.TensorBoard(place(), update_freq=1))
    ),
    "TerminateOnNaN": FitCase(
        classifier, spoilt, lambda: simple(callbacks=[keras.callbacks.TerminateOnNaN()])()
    ),
}
