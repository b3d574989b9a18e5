"""Keras' own fit in one process: `keras_fit.py EPOCHS BATCH`; EPOCHS 0 makes one step."""

import os
import sys

import keras

from benchmarks.models import cnn
from benchmarks.scripts import events


class Teller(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        events.write("epoch", epoch=epoch + 1, loss=logs["loss"])


def main(epochs, batch):
    x, y = cnn.training_data()
    keras.utils.set_random_seed(0)
    model = cnn.build_model()
    cnn.compile_model(model)
    model.fit(
        x,
        y,
        batch_size=batch,
        epochs=max(epochs, 1),
        steps_per_epoch=None if epochs else 1,
        verbose=0,
        callbacks=[Teller()],
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)
