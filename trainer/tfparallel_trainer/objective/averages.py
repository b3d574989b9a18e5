"""Averages of the weights that an optimizer with use_ema keeps: evaluated and exported."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.objective import replica


def adopt(model: Any) -> bool:
    """Overwrite the weights by their averages; gives whether there are any."""
    return _overwrite(model.optimizer, model.trainable_variables)


@contextlib.contextmanager
def used(replicas: Sequence[replica.Replica]) -> Iterator[None]:
    """Let the models of the body have the averages, where they are kept."""
    with contextlib.ExitStack() as stack:
        for local_replica in replicas:
            weights = local_replica.model.trainable_variables
            stack.enter_context(of(local_replica.optimizer, weights, local_replica.device))
        yield


@contextlib.contextmanager
def of(optimizer: Any, weights: Sequence[Any], device: str) -> Iterator[None]:
    """Let these weights in the body be the averages that their optimizer keeps of them."""
    with tf.device(device):
        before = [(weight, tf.identity(weight.value)) for weight in weights]
        kept = before if _overwrite(optimizer, weights) else []
    try:
        yield
    finally:
        for weight, value in kept:
            weight.assign(value)


def _overwrite(optimizer: Any, weights: Sequence[Any]) -> bool:
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # that of a loss scale
    if not inner.use_ema or int(tf.convert_to_tensor(inner.iterations)) == 0:
        return False
    optimizer.finalize_variable_values(weights)
    return True
