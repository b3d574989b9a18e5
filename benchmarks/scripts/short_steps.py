"""What a short step costs besides TensorFlow's calls: `short_steps.py LAYERS STEPS EPOCHS`."""

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.framework import constant_op

import tfparallel_trainer
from benchmarks.scripts import events

_WIDTH = 64
_BATCH = 32


class Inside:
    """Adds up the seconds that the main thread spends in some methods and functions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def count(self, owner: Any, name: str) -> None:
        """Count the time of a method or function, but not again within another one's."""
        method: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._depth or threading.current_thread() is not threading.main_thread():
                return method(*arguments, **named)
            self._depth += 1
            began = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - began
                self._depth -= 1

        setattr(owner, name, timed)


class EpochTimer(keras.callbacks.Callback):
    """Notes the seconds of each epoch, and those inside, but for the first, which is traced."""

    def __init__(self, inside: Inside) -> None:
        super().__init__()
        self.epochs: list[tuple[float, float]] = []
        self._inside = inside

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin."""
        self._begun = time.perf_counter(), self._inside.seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End."""
        begun, inside = self._begun
        if epoch:
            self.epochs.append((time.perf_counter() - begun, self._inside.seconds - inside))


def main(layers: int, steps: int, epochs: int) -> None:
    """Train, and tell the seconds of a step, and those outside of TensorFlow."""

    def build() -> Any:
        model = keras.Sequential([keras.Input((_WIDTH,))])
        for _ in range(layers):
            model.add(keras.layers.Dense(_WIDTH, activation="relu"))
        model.compile(keras.optimizers.Adam(1e-3), "mse")
        return model

    inside = Inside()
    inside.count(concrete_function.ConcreteFunction, "__call__")
    inside.count(polymorphic_function.Function, "__call__")
    inside.count(iterator_ops.OwnedIterator, "__next__")
    inside.count(type(tf.constant(0)), "numpy")
    inside.count(constant_op, "convert_to_eager_tensor")
    timer = EpochTimer(inside)
    x = np.zeros((_BATCH * steps, _WIDTH), np.float32)
    arguments = {"batch_size": _BATCH, "epochs": epochs + 1, "verbose": 0}
    tfparallel_trainer.fit(build, x, x, callbacks=[timer], **arguments)
    for seconds, within in timer.epochs:
        events.write("epoch", step=seconds / steps, outside=(seconds - within) / steps)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
