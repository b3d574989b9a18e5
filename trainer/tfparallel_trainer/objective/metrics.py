"""The compiled metrics over all ranks: each rank updates its own, their state is summed to report.

A variable that the metric declares to be a mean, or that of the first replica
(`keras.Variable.aggregation`), is combined so. All others are added up, which `metric_sums` has
seen to be right.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.objective import metric_sums, replica


@dataclasses.dataclass(frozen=True, slots=True)
class Isolated:
    """What a function gave, and what it would have changed."""

    result: Any
    contributions: list[tf.Tensor]
    """The states of the metrics from nothing, in the order of the model's metrics_variables."""
    statistics: list[tuple[Any, tf.Tensor]]
    """Weights that are not trained, with their new values."""


def isolate(replica: replica.Replica, call: Callable[[], Any]) -> Isolated:
    """Call a function on the model so that it changes no variable."""
    states = replica.model.metrics_variables
    nothing = [(state, tf.zeros(state.shape, state.dtype)) for state in states]
    # Asked for its losses, a model takes the regularised weights from the scope.
    regularised = [weight for weight in replica.model.trainable_weights if weight.regularizer]
    mapping = [*nothing, *((weight, weight.value) for weight in regularised)]
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        result = call()
    changed = [(weight, scope.get_current_value(weight)) for weight in replica.statistics()]
    return Isolated(
        result=result,
        contributions=[tf.convert_to_tensor(scope.get_current_value(state)) for state in states],
        statistics=[(weight, value) for weight, value in changed if value is not None],
    )


def contributions(replica: replica.Replica) -> list[tf.Tensor]:
    """What a rank adds to the sum over ranks, one tensor for each of its metrics' variables."""
    return [_contribution(variable, replica) for variable in replica.model.metrics_variables]


def results(replica: replica.Replica, sums: Sequence[tf.Tensor]) -> dict[str, float]:
    """Compute the metrics from the sums of the contributions, without changing the rank's own."""
    return numbers(tensors(replica, sums))


def tensors(replica: replica.Replica, sums: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """The metrics by name, from the sums of the contributions."""
    mapping = [
        (variable, tf.cast(total, variable.dtype))
        for variable, total in zip(replica.model.metrics_variables, sums, strict=True)
    ]
    with keras.StatelessScope(state_mapping=mapping):
        values = replica.model.get_metrics_result()
    values.pop("loss", None)  # Keras' own tracker, which its fit feeds; the trainer has the loss
    return {name: tf.convert_to_tensor(value) for name, value in values.items()}


def numbers(values: Mapping[str, tf.Tensor]) -> dict[str, float]:
    """The metrics as numbers; of one that has several, each by its place."""
    named: dict[str, float] = {}
    for name, value in values.items():
        flat = value.numpy().reshape(-1)
        for place, number in enumerate(flat):
            named[name if flat.size == 1 else f"{name}_{place}"] = float(number)
    return named


def _contribution(variable: Any, replica: replica.Replica) -> tf.Tensor:
    value = tf.convert_to_tensor(variable)
    if not value.dtype.is_floating:
        value = tf.cast(value, tf.int64)
    if variable.aggregation in metric_sums.SUMMED:
        return value
    if variable.aggregation == "mean":
        return value / tf.cast(replica.data.size, value.dtype)
    return replica.data.of_first(value)
