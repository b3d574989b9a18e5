"""Keras' own `fit` of a model file in one process; shares no code with the trainer.

`python -m testing.trainer.random_models.plain MODULE OUTPUT SEED BATCH EPOCHS ORDER` writes the
weights and the metrics of the last epoch to OUTPUT. The order `mixed` mixes the examples within
each batch and moves each number of theirs by its last bit, which changes rounding only.
"""

import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from testing.trainer import reference

MIXED, PROMISED = "mixed", "promised"


def train(
    path: pathlib.Path, seed: int, batch: int, epochs: int, *, is_mixed: bool
) -> tuple[list[Any], dict[str, float]]:
    """Return weights and the metrics of the last epoch."""
    module = reference.load(path.stem, path.parent)
    keras.utils.set_random_seed(seed)
    model = module.build_model()
    module.compile_model(model)
    model.jit_compile = False
    # Keras' fit loses what ScheduleFreeAdamW assigns while it is built in a StatelessScope.
    model.optimizer.build(model.trainable_variables)
    recorder = _Recorder()
    data = module.training_data()
    count = len(keras.tree.flatten(data[0])[0])
    history = model.fit(
        _batches(data, count, seed, batch, is_mixed=is_mixed),
        epochs=epochs,
        steps_per_epoch=-(-count // batch),
        callbacks=[*(module.callbacks() if hasattr(module, "callbacks") else []), recorder],
        verbose=0,
    )
    return recorder.weights, {name: values[-1] for name, values in history.history.items()}


class _Recorder(keras.callbacks.Callback):
    """Keeps the weights of the last epoch's end: at the end of all, Keras writes averages."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.weights = self.model.get_weights()


def _batches(data: Any, count: int, seed: int, batch: int, *, is_mixed: bool) -> Iterator[Any]:
    """Give the batches of endless epochs in the order that docs/how-to/model-interface.md has."""
    epoch = 0
    mixing = np.random.default_rng(0)
    if is_mixed:
        data = (keras.tree.map_structure(_rounded, data[0]), *data[1:])
    while True:
        places = tf.range(count, dtype=tf.int64)
        order = tf.random.experimental.index_shuffle(places, [seed, epoch], count - 1).numpy()
        for first in range(0, count, batch):
            chosen = order[first : first + batch]
            if is_mixed:
                mixing.shuffle(chosen)
            # Keras takes texts as tensors only.
            yield keras.tree.map_structure(lambda part, at=chosen: tf.constant(part[at]), data)
        epoch += 1


def _rounded(numbers: Any) -> Any:
    """Return numbers that differ in their last bit; whole numbers and zeros mean something."""
    if numbers.dtype.kind != "f":
        return numbers
    is_whole = numbers == np.floor(numbers)
    return np.where(is_whole, numbers, np.nextafter(numbers, np.inf))


def main(arguments: Sequence[str]) -> None:
    """Train, and write weights and metrics."""
    module, output, seed, batch, epochs, order = arguments
    weights, metrics = train(
        pathlib.Path(module), int(seed), int(batch), int(epochs), is_mixed=order == MIXED
    )
    arrays: dict[str, Any] = {f"weight/{number:03}": array for number, array in enumerate(weights)}
    arrays |= {f"metric/{name}": np.float64(value) for name, value in metrics.items()}
    np.savez(output, **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
