"""What a callback costs in each step: `callback_steps.py LAYERS STEPS ROUNDS`.

It times epochs without a callback of batches, and with one of each kind, in turns.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tfparallel_trainer
from benchmarks.scripts import events

_WIDTH = 64


class Reads(keras.callbacks.Callback):
    """Reads the loss and a metric of each batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the largest."""
        self.largest = max(logs["loss"], logs["mae"])


class Rate(keras.callbacks.Callback):
    """Sets the learning rate for each batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set another one."""
        self.model.optimizer.learning_rate = 1e-3 / (1 + batch)


class Clock(keras.callbacks.Callback):
    """Notes the seconds of each epoch but the first, which is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin."""
        self._begun = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End."""
        if epoch:
            self.seconds.append(time.perf_counter() - self._begun)


KINDS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    "reads": lambda: [Reads()],
    "rate": lambda: [Rate()],
    "tensorboard": lambda: [keras.callbacks.TensorBoard(tempfile.mkdtemp(), write_graph=False)],
}


def main(layers: int, steps: int, rounds: int) -> None:
    """Train with each kind in turns, and tell the seconds of a step."""
    for _ in range(rounds):
        for kind, callbacks in KINDS.items():
            events.write("steps", kind=kind, seconds=_seconds(layers, steps, callbacks()))


def _seconds(layers: int, steps: int, callbacks: list[Any]) -> list[float]:
    def build() -> Any:
        model = keras.Sequential([keras.Input((_WIDTH,))])
        for _ in range(layers):
            model.add(keras.layers.Dense(_WIDTH, activation="relu"))
        model.compile(keras.optimizers.Adam(1e-3), "mse", metrics=["mae"])
        return model

    x = np.zeros((32 * steps, _WIDTH), np.float32)
    clock = Clock()
    arguments = {"batch_size": 32, "epochs": 4, "verbose": 0}
    tfparallel_trainer.fit(build, x, x, callbacks=[*callbacks, clock], **arguments)
    return [seconds / steps for seconds in clock.seconds]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
