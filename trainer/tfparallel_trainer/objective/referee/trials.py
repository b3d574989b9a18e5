"""What both sides of a check give: loss, gradients and metrics, as tensors of a traced function."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfparallel_trainer.objective import metric_sums, phases, train_step
from tfparallel_trainer.objective.replica import Replica


@dataclasses.dataclass(frozen=True, slots=True)
class RankOutcome:
    """What a rank gives for a small batch; its variables have changed as in a step."""

    loss: tf.Tensor
    gradients: list[list[Any]]
    """Of the variables of each phase: a tensor, (values, rows) or None."""
    metrics: dict[str, tf.Tensor]


Apply = Callable[[phases.Computation, train_step.ReducedPhase], None]


class Trial(Protocol):
    """What an engine brings: its training step on a small batch, traced for a check."""

    def trace(self, pattern: tuple[bool, ...]) -> Any:
        """Trace what takes the step's number, of how many examples, and this process's parts.

        The pattern says which of its ranks have examples. The number of examples is that of all
        ranks, float64. The concrete function gives a `RankOutcome` for each rank, as a tuple.
        """


def outcome(replica: Replica, results: Sequence[train_step.ReducedPhase]) -> tuple[Any, ...]:
    """The outcome of a step whose phases gave these results, with the metrics."""
    gradients = [[split(gradient) for gradient in phase.gradients] for phase in results]
    return (
        train_step.combine_phases(results).loss,
        gradients,
        metric_sums.tensors(replica, results[-1].metric_states),
    )


def split(gradient: Any) -> Any:
    """A gradient as a traced function can give and take it."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values, tf.cast(gradient.indices, tf.int64)
    return gradient


def unsplit(gradient: Any, variable: Any) -> Any:
    """Undo `split`, for a variable."""
    if isinstance(gradient, (tuple, list)):
        values, rows = gradient
        shape = tf.constant(list(variable.shape), tf.int64)
        return tf.IndexedSlices(values, rows, shape)
    return gradient
