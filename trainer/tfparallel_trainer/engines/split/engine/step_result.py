"""What a rank knows of a step once sums over ranks are made: the loss, and complete gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.engine import backward, exchange, update


class Loss:
    """The loss over all ranks, from the sum of what they gave."""

    def __init__(
        self, worker: backward.Training, numbers: tf.Tensor, count: int, signal_count: int
    ) -> None:
        terms = worker.rank.head.terms
        denominators, numerators = numbers[:count], numbers[count : 2 * count]
        weights = tf.constant([term.weight for term in terms], tf.float64)
        divided = tf.constant([term.divided for term in terms])
        scales = tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)
        self.terms = numerators * scales
        """That of each output."""
        self.total = tf.reduce_sum(self.terms) + numbers[2 * count]
        self.signals, self.watched = tf.split(numbers[2 * count + 1 :], [signal_count, -1])
        self.factor = tf.where(divided[0], tf.math.divide_no_nan(1.0, denominators[0]), 1.0)
        """What gradients of the numerator are multiplied by where there is only one."""


class CompleteGradients:
    """The gradients of a rank as its optimizer takes them."""

    def __init__(
        self, worker: backward.Training, factor: tf.Tensor | None, *, speaks_for_all: bool
    ) -> None:
        """Args:
        worker: of a rank, with its gradients summed over ranks.
        factor: what these are multiplied by first.
        speaks_for_all: whether it counts all its variables, not only those that it owns.
        """
        rank = worker.rank
        gradients = _with_penalty(worker, factor)
        self.failed = tf.add_n([tf.zeros((), tf.float64), *_one_by_one(_failed, gradients)])
        """How many are not finite."""
        self.gradients = rank.optimizer.unscaled(gradients)
        nothing = tf.zeros((), tf.float64)
        squares = [nothing] * len(gradients)
        if rank.optimizer.clips_by_norm:
            squares = _one_by_one(update.square, self.gradients)
        self.squares = tf.stack(squares) if squares else tf.zeros((0,), tf.float64)
        """Of each variable; in the end of the whole of it: float64 [trained variables]."""
        owned = [
            one
            for key, one in zip(rank.trained, squares, strict=True)
            if speaks_for_all or rank.owns(key)
        ]
        self.own_square = tf.add_n([nothing, *owned])
        """Of the parts that this rank speaks for."""


def _with_penalty(worker: backward.Training, factor: tf.Tensor | None) -> list[Any]:
    """The gradients of the whole loss, times its scale.

    Args:
        worker: of a rank, with its gradients summed over ranks.
        factor: what these are multiplied by first.
    """
    trained = worker.rank.trained
    regularised = [key for key, weight in trained.items() if weight.regularizer is not None]
    with tf.GradientTape() as tape:
        added = penalty(trained, regularised)
    sources = [trained[key].value for key in regularised]
    seed = tf.cast(worker.scale, tf.float64)
    penalty_gradients = tape.gradient(added, sources, output_gradients=seed) if sources else []
    of_penalty = dict(zip(regularised, penalty_gradients, strict=True))
    gradients = []
    for key, one in worker.gradients.items():
        both = [one if factor is None else update.times(one, factor), of_penalty.get(key)]
        gradients.append(exchange.add(both, [worker.rank.kind(key, part) for part in both]))
    return gradients


def penalty(weights: Mapping[str, Any], keys: Sequence[str]) -> tf.Tensor:
    """The regularisation of some weights: a scalar float64."""
    regularised = [weights[key] for key in keys if weights[key].regularizer is not None]
    parts = [tf.cast(weight.regularizer(weight), tf.float64) for weight in regularised]
    return tf.add_n([tf.zeros((), tf.float64), *parts])


def _one_by_one(number: Callable[[Any], tf.Tensor], gradients: Sequence[Any]) -> list[tf.Tensor]:
    """A number of each gradient, 0 where there is none, each after the one before.

    What is computed on the way is as large as the gradient, or twice; so it is there only once.
    """
    numbers: list[tf.Tensor] = []
    for one in gradients:
        with tf.control_dependencies(numbers[-1:]):
            numbers.append(tf.zeros((), tf.float64) if one is None else number(one))
    return numbers


def _failed(gradient: Any) -> tf.Tensor:
    """1 where a gradient is not finite, else 0: a scalar float64."""
    (values,) = exchange.floats([gradient])
    return tf.cast(~tf.reduce_all(tf.math.is_finite(values)), tf.float64)
