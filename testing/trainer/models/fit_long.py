"""A script that trains in small steps for a while; it may be stopped and started again.

Arguments: a folder for checkpoints, epochs, and what goes wrong, if anything.
"""

import importlib
import sys
import time

import keras
import numpy as np

import tfparallel_trainer

keras.config.set_floatx("float64")
fitted = importlib.import_module("fitted")
folder, epochs, *wrong = sys.argv[1:]


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)


def build():
    return fitted.classifier()


data = fitted.numbers()
model = build
if "early" in wrong:
    model = build()  # before the processes have found each other
if "nan" in wrong:
    data["x"] = data["x"].copy()
    data["x"][40] = np.nan
history = tfparallel_trainer.fit(
    model,
    **data,
    batch_size=15,
    epochs=int(epochs),
    callbacks=[Slow()],
    shuffle=False,
    output_dir=folder,
    save_every_steps=3,
)
if history.model is not None:
    np.savez(f"{folder}/weights", *history.model.get_weights())
