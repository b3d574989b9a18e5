"""Handwritten digits by a script that fails in its first run, with an exit code of its own."""

import os
import sys

import keras
from sklearn import datasets

import tfparallel_trainer

NO_LICENCE = 4
FIRST_RUN = os.environ["TFPARALLEL_ATTEMPT"] == "1"

digits = datasets.load_digits()
x = (digits.images / 16).astype("float32")


class Licence(keras.callbacks.Callback):
    """Stands for a library whose licence server does not answer."""

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch + 1}: accuracy {logs['accuracy']:.2f}", flush=True)
        if FIRST_RUN and epoch == 2:
            sys.exit(NO_LICENCE)


model = keras.Sequential(
    [
        keras.Input((8, 8)),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])

# output_dir keeps checkpoints: the second run resumes after the epoch that the first one saved.
tfparallel_trainer.fit(
    model,
    x,
    digits.target,
    epochs=6,
    batch_size=64,
    verbose=0,
    callbacks=[Licence()],
    output_dir=sys.argv[1],
)
