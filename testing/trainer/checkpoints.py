"""States of a small model, and stores that take them."""

import pathlib

import keras
import numpy as np

from tfparallel_trainer.checkpoint import files, shard, store
from tfparallel_trainer.storage import folder as folders


def variables(value: float) -> dict[str, keras.Variable]:
    return {
        "model/0/0": keras.Variable(np.full((2, 3), value), dtype="float32"),
        "model/0/1": keras.Variable(np.full((3,), value), dtype="bfloat16"),
        "optimizer/0": keras.Variable(int(value), dtype="int64"),
    }


def state(value: float) -> shard.State:
    return shard.undivided(variables(value))


def at(step: int) -> files.Position:
    return files.Position(step=step, epoch=step // 10, example=step % 10)


def opened(
    folder: pathlib.Path, attempt: int | None = 1, keep: int = 2, job: str = "a"
) -> store.Store:
    return store.Store(folders.Folder(folder), keep, job, attempt, lambda _: None)
