"""Training in one process by a plain Keras loop; shares no code with the trainer."""

import contextlib
import importlib.util
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from testing import paths

MODELS = paths.TRAINER_MODELS


Rows = Callable[[int], tuple[Any, ...]]
"""The examples of an epoch in their order: (x, y) or (x, y, sample_weight)."""


def load(name: str, folder: pathlib.Path = MODELS) -> Any:
    """Import one of the models."""
    spec = importlib.util.spec_from_file_location(f"reference_{name}", folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def floatx() -> Iterator[None]:
    """Undo what a module's own floatx changes, and let it take effect."""
    before = keras.config.floatx()
    keras.utils.clear_session()
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.utils.clear_session()


def train(
    module: Any,
    steps: int,
    batch_size: int,
    seed: int,
    rows: Rows | None = None,
    parts: Sequence[Sequence[int]] = (),
) -> tuple[list[Any], list[float]]:
    """Train a module's model; gives the weights and the loss of each step.

    `rows` gives the examples of an epoch in their order; by default those of training_data in the
    order that docs/how-to/model-interface.md promises. `parts` are microbatches that the model sees
    one after the other, as places in a batch, for a loss that is a mean over examples.
    """
    keras.utils.set_random_seed(seed)
    model = module.build_model()
    module.compile_model(model)
    if not model.built:  # a subclassed one, which has no weights before
        x, *_ = next(batches(module, batch_size, seed, 0, rows))
        model(keras.tree.map_structure(lambda part: part[:1], x))
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)

    def loss_of(x: Any, y: Any, weight: Any = None) -> Any:
        return model.compute_loss(x, y, model(x, training=True), weight)

    def cut(part: Sequence[int], *arrays: Any) -> Any:
        return keras.tree.map_structure(lambda array: tf.gather(array, list(part)), arrays)

    @tf.function(autograph=False, reduce_retracing=True)
    def step(x: Any, y: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            if parts:
                loss = sum(len(part) / batch_size * loss_of(*cut(part, x, y)) for part in parts)
            else:
                loss = loss_of(x, y, weight)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        return loss

    losses: list[float] = []
    epoch = 0
    while len(losses) < steps:
        for x, y, weight in batches(module, batch_size, seed, epoch, rows):
            losses.append(float(step(x, y, weight)))
            if len(losses) == steps:
                break
        epoch += 1
    return model.get_weights(), losses


def fit(module: Any, epochs: int, batch_size: int, seed: int) -> list[Any]:
    """Let Keras' own fit train a module's model with its callbacks; gives the weights."""
    keras.utils.set_random_seed(seed)
    model = module.build_model()
    module.compile_model(model)
    model.optimizer.build(model.trainable_variables)
    passes = [list(batches(module, batch_size, seed, epoch, None)) for epoch in range(epochs)]
    model.fit(
        ((x, y) for pass_batches in passes for x, y, _ in pass_batches),
        steps_per_epoch=len(passes[0]),
        epochs=epochs,
        callbacks=module.callbacks(),
        shuffle=False,
        verbose=0,
    )
    trained: list[Any] = model.get_weights()
    return trained


def batches(
    module: Any, batch_size: int, seed: int, epoch: int, rows: Rows | None
) -> Iterator[tuple[Any, Any, Any]]:
    data = rows(epoch) if rows else module.training_data()
    x, y, weight = data if len(data) == 3 else (*data, None)
    count = len(keras.tree.flatten(x)[0])
    order = np.arange(count)
    if rows is None:
        order = tf.random.experimental.index_shuffle(
            tf.range(count, dtype=tf.int64), [seed, epoch], tf.constant(count - 1, tf.int64)
        ).numpy()
    for first in range(0, count, batch_size):
        chosen = order[first : first + batch_size]
        yield (
            keras.tree.map_structure(lambda part, at=chosen: tf.constant(part[at]), x),
            keras.tree.map_structure(lambda part, at=chosen: tf.constant(part[at]), y),
            None if weight is None else tf.constant(weight[chosen]),
        )
