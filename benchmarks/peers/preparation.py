"""Writes what all competitors begin with: `preparation.py MODEL FOLDER`; see `run.py`.

They are the weights with which our trainer begins at seed 0, and the examples as it takes them.
"""

import pathlib
import sys

import keras
import numpy as np

from benchmarks.peers import run, workloads
from tfparallel_trainer.data import order


def main(name, folder):
    keras.utils.set_random_seed(0)
    model = workloads.MODELS[name].build(keras)
    np.savez(folder / "weights.npz", *model.get_weights())
    x, y = workloads.draw(name)
    rows = [
        order.shuffled(range(len(x)), len(x), seed=0, epoch=epoch) for epoch in range(run.EPOCHS)
    ]
    indices = np.concatenate(rows)
    np.savez(folder / "batches.npz", x=x[indices], y=y[indices])


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
