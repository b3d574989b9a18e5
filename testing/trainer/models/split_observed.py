"""A model with every kind of callback that a divided model takes; they change the rate and stop."""

import keras
import numpy as np

keras.config.set_floatx("float64")


def build_model():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )


def compile_model(model):
    model.compile(
        keras.optimizers.Adam(0.2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def training_data():
    x = np.random.default_rng(1).normal(size=(52, 6))
    return x, np.argmax(x[:, :3], 1)


def evaluation_data():
    x, y = training_data()
    return -x, y  # gets worse with each step


class Cooling(keras.callbacks.Callback):
    """Lowers the rate within epochs by what the logs say, and stops in the middle of one."""

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        optimizer.learning_rate = rate * (0.98 if logs["loss"] > 0.1 else 0.97)
        if int(optimizer.iterations) == 18:
            self.model.stop_training = True


def callbacks(context):
    kinds = keras.callbacks
    logs = context.output_dir
    return [
        kinds.ReduceLROnPlateau(factor=0.5, patience=1, cooldown=1),
        kinds.EarlyStopping("val_accuracy", patience=8),
        Cooling(),
        kinds.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(twice=2 * logs["loss"])),
        kinds.TerminateOnNaN(),
        kinds.TensorBoard(str(logs / "board"), write_graph=False, write_steps_per_second=True),
        kinds.CSVLogger(str(logs / "log.csv")),
    ]
