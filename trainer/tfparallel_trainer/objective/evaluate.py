"""Evaluation on all ranks: each processes its part of the examples, then one sum follows.

The loss is Σ N / Σ D over all examples (see `objective.loss`), so it does not depend on batch size.
If an optimizer keeps averages of the weights (use_ema), these are evaluated and exported.
"""

import abc
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.objective import loss, metric_sums, state
from tfparallel_trainer.objective.replica import Replica


class Evaluator(abc.ABC):
    """Evaluates examples on all ranks, and adds up the results."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        share_statistics: Callable[[], Any],
        averaged: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Take the replicas of this process, which have the metrics.

        `share_statistics` copies the first rank's untrained weights to every rank. In the body of
        `averaged`, the weights have their averages if the optimizer keeps some.
        """
        self._replicas = replicas
        self._share_statistics = share_statistics
        self._averaged = averaged

    def run(self, batches: Iterable[batch_division.Batch]) -> dict[str, float]:
        """Return loss and metrics over all examples, the same on every process."""
        self._share_statistics()
        with self._averaged():
            reset_metrics(self._replicas)
            sums = np.zeros((2, len(self._replicas[0].terms)))
            for batch in batches:
                sums += self.sums(batch)
            results = self.results(sums)
        reset_metrics(self._replicas)
        return results

    @abc.abstractmethod
    def sums(self, batch: batch_division.Batch) -> Any:
        """Numerators and denominators of the loss over a batch [2, terms]; updates the metrics."""

    @abc.abstractmethod
    def results(self, sums: Any) -> dict[str, float]:
        """Loss and metrics, from the sums over all batches."""


def _value(term: loss.Term, above: float, below: float) -> float:
    """The value of a term over all examples."""
    if term.divided and below == 0:
        raise errors.UserCodeError(
            f"The data to evaluate on have no examples that count for {_name(term)} (none, or all "
            "masked): give some, or do not evaluate.",
            function="evaluation_data",
        )
    return term.weight * (above / below if term.divided else above)


def _name(term: loss.Term) -> str:
    title = term.title if term.output else "What layers add by add_loss"
    return f"{title[0].lower()}{title[1:]}"


class MetricReduction:
    """Combines the metrics of all ranks, and adds up numbers of all processes."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._traced: Any = None

    def __call__(self, numbers: Any) -> tuple[dict[str, float], Any]:
        """The metrics over all ranks, and the sum over processes of numbers, float64 [2, terms]."""
        if self._traced is None:
            self._traced = tf.function(self._run, autograph=False)
        total, *states = self._traced(tf.constant(numbers, tf.float64))
        return metric_sums.results(self._replicas[0], states), total.numpy()

    def metrics(self) -> dict[str, float]:
        """The metrics over all ranks."""
        values, _ = self(np.zeros((2, len(self._replicas[0].terms))))
        return values

    def _run(self, numbers: tf.Tensor) -> list[tf.Tensor]:
        def add_up(rank_replica: Replica) -> list[tf.Tensor]:
            mine = numbers if rank_replica is self._replicas[0] else tf.zeros_like(numbers)
            return rank_replica.data.sum_all([mine, *metric_sums.contributions(rank_replica)])

        return state.on_each(self._replicas, collectives.Program.REPORT, add_up)[0]


def reset_metrics(replicas: Sequence[Replica]) -> None:
    """Reset the metrics."""
    for local_replica in replicas:
        local_replica.model.reset_metrics()


def losses(replica: Replica, totals: Any, penalty: float | None = None) -> dict[str, float]:
    """The loss over all examples, and with several outputs also the loss of each.

    `totals` [2, terms] are the results of `sums_of`, added up over all examples. `penalty` is the
    regularisation of all weights; absent: the replica's. If no example counts, it is a
    UserCodeError.
    """
    if penalty is None:
        penalty = sum(float(phase.penalty()) for phase in replica.computations)
    values = [
        _value(term, above, below)
        for term, above, below in zip(replica.terms, *totals, strict=True)
    ]
    return {"loss": float(sum(values) + penalty), **replica.by_output(values)}


def penalty_of(weights: Iterable[Any]) -> float:
    """The regularisation of weights."""
    return float(sum(float(weight.regularizer(weight)) for weight in weights if weight.regularizer))


def sums_of(replica: Replica, part: Any) -> tf.Tensor:
    """Numerators and denominators of the loss over examples: [2, terms]; updates the metrics."""
    fractions = [
        fraction
        for phase in replica.computations
        for fraction in phase.fractions(part, replica.data, training=False)
    ]
    rows = itertools.chain(
        (tf.cast(fraction.numerator, tf.float64) for fraction in fractions),
        (fraction.denominator for fraction in fractions),
    )
    return tf.reshape(tf.stack(list(rows)), (2, len(fractions)))


def adopt_averages(model: Any) -> bool:
    """Overwrite the weights by their averages; returns whether the optimizer keeps any."""
    return _overwrite(model.optimizer, model.trainable_variables)


@contextlib.contextmanager
def averaged(replicas: Sequence[Replica]) -> Iterator[None]:
    """Replace the models' weights by their averages in the body, if optimizers keep some."""
    with contextlib.ExitStack() as stack:
        for local_replica in replicas:
            weights = local_replica.model.trainable_variables
            stack.enter_context(
                averaged_weights(local_replica.optimizer, weights, local_replica.device)
            )
        yield


@contextlib.contextmanager
def averaged_weights(
    optimizer: Any, weights: Sequence[Any], device: str, updated: Sequence[Any] | None = None
) -> Iterator[bool]:
    """Replace weights by the averages that their optimizer keeps, in the body.

    If the optimizer updates slices of the weights, `updated` has these. Yields whether it keeps
    averages.
    """
    with tf.device(device):
        before = [(weight, tf.identity(weight.value)) for weight in weights]
        kept = before if _overwrite(optimizer, weights if updated is None else updated) else []
    try:
        yield bool(kept)
    finally:
        for weight, value in kept:
            weight.assign(value)


def _overwrite(optimizer: Any, weights: Sequence[Any]) -> bool:
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # that of a loss scale
    if not inner.use_ema or int(tf.convert_to_tensor(inner.iterations)) == 0:
        return False
    optimizer.finalize_variable_values(weights)
    return True
