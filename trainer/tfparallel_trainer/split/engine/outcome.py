"""What a rank knows of a step once sums over ranks are made: the loss, and complete gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.split.engine import backward, exchange, update


class Loss:
    """The loss over all ranks, from the sum of what they gave."""

    def __init__(self, actor: backward.Training, numbers: tf.Tensor, count: int, told: int) -> None:
        terms = actor.own.head.terms
        denominators, numerators = numbers[:count], numbers[count : 2 * count]
        weights = tf.constant([term.weight for term in terms], tf.float64)
        divided = tf.constant([term.divided for term in terms])
        scales = tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)
        self.terms = numerators * scales
        """That of each output."""
        self.total = tf.reduce_sum(self.terms) + numbers[2 * count]
        self.told, self.watched = tf.split(numbers[2 * count + 1 :], [told, -1])
        self.factor = tf.where(divided[0], tf.math.divide_no_nan(1.0, denominators[0]), 1.0)
        """What gradients of the numerator are multiplied by where there is only one."""


class Complete:
    """The gradients of a rank as its optimizer takes them."""

    def __init__(
        self, actor: backward.Training, factor: tf.Tensor | None, *, speaks_for_all: bool
    ) -> None:
        """Args:
        actor: of a rank, with its gradients summed over ranks.
        factor: what these are multiplied by first.
        speaks_for_all: whether it tells of all its variables, not only of those that it owns.
        """
        own = actor.own
        whole = _with_penalty(actor, factor)
        self.failed = tf.add_n([tf.zeros((), tf.float64), *_one_by_one(_failed, whole)])
        """How many are not finite."""
        self.gradients = own.optimizer.unscaled(whole)
        nothing = tf.zeros((), tf.float64)
        squares = [nothing] * len(whole)
        if own.optimizer.clips_by_norm:
            squares = _one_by_one(update.square, self.gradients)
        self.squares = tf.stack(squares) if squares else tf.zeros((0,), tf.float64)
        """Of each variable; in the end of the whole of it: float64 [trained variables]."""
        owned = [
            one
            for key, one in zip(own.trained, squares, strict=True)
            if speaks_for_all or own.owns(key)
        ]
        self.own_square = tf.add_n([nothing, *owned])
        """Of the parts that this rank speaks for."""


def _with_penalty(actor: backward.Training, factor: tf.Tensor | None) -> list[Any]:
    """The gradients of the whole loss, times its scale.

    Args:
        actor: of a rank, with its gradients summed over ranks.
        factor: what these are multiplied by first.
    """
    trained = actor.own.trained
    regularised = [key for key, weight in trained.items() if weight.regularizer is not None]
    with tf.GradientTape() as tape:
        added = penalty(trained, regularised)
    sources = [trained[key].value for key in regularised]
    seed = tf.cast(actor.scale, tf.float64)
    found = tape.gradient(added, sources, output_gradients=seed) if sources else []
    of_penalty = dict(zip(regularised, found, strict=True))
    whole = []
    for key, one in actor.gradients.items():
        both = [one if factor is None else update.times(one, factor), of_penalty.get(key)]
        whole.append(exchange.add(both, [actor.own.kind(key, part) for part in both]))
    return whole


def penalty(weights: Mapping[str, Any], keys: Sequence[str]) -> tf.Tensor:
    """The regularisation of some weights: a scalar float64."""
    found = [weights[key] for key in keys if weights[key].regularizer is not None]
    parts = [tf.cast(weight.regularizer(weight), tf.float64) for weight in found]
    return tf.add_n([tf.zeros((), tf.float64), *parts])


def _one_by_one(number: Callable[[Any], tf.Tensor], found: Sequence[Any]) -> list[tf.Tensor]:
    """A number of each gradient, 0 where there is none, each after the one before.

    What is computed on the way is as large as the gradient, or twice; so it is there only once.
    """
    numbers: list[tf.Tensor] = []
    for one in found:
        with tf.control_dependencies(numbers[-1:]):
            numbers.append(tf.zeros((), tf.float64) if one is None else number(one))
    return numbers


def _failed(gradient: Any) -> tf.Tensor:
    """1 where a gradient is not finite, else 0: a scalar float64."""
    (values,) = exchange.floats([gradient])
    return tf.cast(~tf.reduce_all(tf.math.is_finite(values)), tf.float64)
