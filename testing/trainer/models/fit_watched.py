"""A script with callbacks that trains with parameter servers.

Arguments: a folder for what it leaves.
"""

import json
import pathlib
import sys

import keras
import numpy as np

import tfparallel_trainer

EPOCHS, EXAMPLES, BATCH = 9, 96, 8
folder = pathlib.Path(sys.argv[1])


class Recorder(keras.callbacks.Callback):
    """Records its calls, and lets the learning rate fall within an epoch."""

    def __init__(self):
        super().__init__()
        self.batches = []
        self.rates = []
        self.saved = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append([batch, logs["loss"], logs["accuracy"]])
        rate = float(self.model.optimizer.learning_rate.numpy())
        self.rates.append(rate)
        self.model.optimizer.learning_rate = rate * 0.99

    def on_epoch_end(self, epoch, logs=None):
        # The checkpoint of this epoch is there, and holds the weights that the servers have now.
        checkpoint = keras.models.load_model(folder / f"epoch-{epoch + 1}.keras")
        pairs = zip(checkpoint.get_weights(), self.model.get_weights(), strict=True)
        self.saved.append(max(float(np.abs(array - other).max()) for array, other in pairs))


def build():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


x = np.random.default_rng(1).normal(size=(EXAMPLES, 6)).astype("float32")
y = np.argmax(x[:, :3], 1)
recorder = Recorder()
history = tfparallel_trainer.fit(
    build,
    x,
    y,
    BATCH,
    EPOCHS,
    callbacks=[
        keras.callbacks.ModelCheckpoint(folder / "epoch-{epoch}.keras"),
        recorder,
        # The wrong direction: the first epoch stays the best.
        keras.callbacks.EarlyStopping("loss", patience=2, mode="max", restore_best_weights=True),
    ],
)
best = keras.models.load_model(folder / "epoch-1.keras")
pairs = zip(best.get_weights(), history.model.get_weights(), strict=True)
results = {
    "epochs": history.epoch,
    "history": history.history,
    "batches": recorder.batches,
    "rates": recorder.rates,
    "saved": recorder.saved,
    "restored": max(float(np.abs(array - other).max()) for array, other in pairs),
}
(folder / "results.json").write_text(json.dumps(results))
