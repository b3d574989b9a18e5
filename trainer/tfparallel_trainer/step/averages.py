"""Averages of the weights that an optimizer with use_ema keeps: evaluated and exported."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.step import replica


def adopt(model: Any) -> bool:
    """Overwrite the weights by their averages; gives whether there are any."""
    optimizer = model.optimizer
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # that of a loss scale
    if not inner.use_ema or int(tf.convert_to_tensor(inner.iterations)) == 0:
        return False
    optimizer.finalize_variable_values(model.trainable_variables)
    return True


@contextlib.contextmanager
def used(replicas: Sequence[replica.Replica]) -> Iterator[None]:
    """Let the models of the body have the averages, where they are kept."""
    kept: list[tuple[Any, tf.Tensor]] = []
    for own in replicas:
        weights = own.model.trainable_variables
        with tf.device(own.device):
            before = [(weight, tf.identity(weight.value)) for weight in weights]
            if adopt(own.model):
                kept += before
    try:
        yield
    finally:
        for weight, value in kept:
            weight.assign(value)
