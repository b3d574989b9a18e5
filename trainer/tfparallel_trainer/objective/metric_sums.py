"""The compiled metrics over all ranks.

Each rank updates its own, and a report adds up their states.

If a metric declares that a variable is a mean, or that of the first replica
(`keras.Variable.aggregation`), ranks combine it so. All other variables are added up. That is right
if they start at zero, and if an update adds an amount that does not depend on their values. The
declaration does not show this, because Keras' default is `aggregation="sum"`. So `check` tries an
update by one example from several states, which must add the same amount to each.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.objective.replica import Replica

SUMMED = ("sum", "none")
"""Values of `keras.Variable.aggregation` of variables that are added up; "none" is what a variable
has that its metric makes without `add_variable`."""

_REMEDY = (
    "let its variables begin at zero and update_state only add to them, or leave it out of "
    "model.compile and call model.evaluate on the trained model"
)

_SIZE = 1024
"""The size of the numbers in tried states. If an update adds more, several times that amount."""

_ROUNDINGS = 256
"""Number of roundings that an update may cause, each by the precision of its variable."""


@dataclasses.dataclass(frozen=True, slots=True)
class Isolated:
    """The result of a function, and the changes that it would have made."""

    result: Any
    contributions: list[tf.Tensor]
    """The states of the metrics, counted from a reset, in the order of the model's
    metrics_variables."""
    assigned: list[tuple[Any, tf.Tensor]]
    """Weights that the function has assigned, with their new values."""
    watched: list[tuple[Any, tf.Tensor]]
    """The values that it has assigned to trained weights, as the tape watches them."""


class _Scope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """Records assignments. As with variables, no gradient passes through an assignment."""

    def __init__(self, tape: Any, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._tape = tape
        self.updates: list[tuple[Any, tf.Tensor]] = []

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Record an assignment to a variable."""
        variable, value = update
        value = tf.stop_gradient(value)
        if self._tape is not None and variable.trainable and value.dtype.is_floating:
            self._tape.watch(value)
        self.updates.append((variable, value))
        super().add_update((variable, value))


def isolate(
    replica: Replica,
    call: Callable[[], Any],
    tape: Any = None,
    values: Sequence[tuple[Any, tf.Tensor]] = (),
) -> Isolated:
    """Call a function on the model so that it changes no variable.

    The tape, if given, watches the values that the function assigns to weights. `values` replace
    those of some variables.
    """
    states = replica.model.metrics_variables
    nothing = [(state, tf.zeros(state.shape, state.dtype)) for state in states]
    # For its losses, a model reads the regularised weights from the scope.
    regularised = [weight for weight in replica.model.trainable_weights if weight.regularizer]
    mapping = [*nothing, *((weight, weight.value) for weight in regularised), *values]
    with _Scope(tape, state_mapping=mapping, collect_losses=True) as scope:
        result = call()
    weights = {id(weight): weight for weight in replica.model.weights}
    changed = {id(variable): variable for variable, _ in scope.updates if id(variable) in weights}
    return Isolated(
        result=result,
        contributions=[tf.convert_to_tensor(scope.get_current_value(state)) for state in states],
        assigned=[(weight, scope.get_current_value(weight)) for weight in changed.values()],
        watched=[(variable, value) for variable, value in scope.updates if id(variable) in weights],
    )


def contributions(replica: Replica) -> list[tf.Tensor]:
    """A rank's summands, one tensor for each of its metrics' variables."""
    return [_contribution(variable, replica) for variable in replica.model.metrics_variables]


def results(replica: Replica, sums: Sequence[tf.Tensor]) -> dict[str, float]:
    """Compute the metrics from the sums of the contributions, without changing the rank's own."""
    return numbers(tensors(replica, sums))


def tensors(replica: Replica, sums: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """The metrics by name, from the sums of the contributions."""
    mapping = [
        (variable, tf.cast(total, variable.dtype))
        for variable, total in zip(replica.model.metrics_variables, sums, strict=True)
    ]
    with keras.StatelessScope(state_mapping=mapping):
        values = replica.model.get_metrics_result()
    values.pop(
        "loss", None
    )  # Keras' own tracker, which only `fit` updates; the trainer computes the loss
    return {name: tf.convert_to_tensor(value) for name, value in values.items()}


def numbers(values: Mapping[str, tf.Tensor]) -> dict[str, float]:
    """The metrics as numbers. A metric with several numbers gets one entry for each."""
    named: dict[str, float] = {}
    for name, value in values.items():
        flat = value.numpy().reshape(-1)
        for index, number in enumerate(flat):
            named[name if flat.size == 1 else f"{name}_{index}"] = float(number)
    return named


def _contribution(variable: Any, replica: Replica) -> tf.Tensor:
    value = tf.convert_to_tensor(variable)
    if not value.dtype.is_floating:
        value = tf.cast(value, tf.int64)
    if variable.aggregation in SUMMED:
        return value
    if variable.aggregation == "mean":
        return value / tf.cast(replica.data.size, value.dtype)
    return replica.data.only_first(value)


def check(model: Any, forward: Callable[[], Any], sample: Any) -> None:
    """Refuse (UserCodeError) a user's metric that cannot be added up over replicas.

    All of Keras' own can be. The model's metrics are built and reset, and `forward` calls it on the
    sample: (x, y, sample_weight) of one example, tensors [1, …].
    """
    compiled = _of_users(_compiled(model))
    attached = _of_users(model.metrics)  # those of layers
    if not compiled and not attached:
        return
    x, y, weight = sample
    with keras.StatelessScope():
        y_pred = forward()

    def update() -> None:
        model.compute_metrics(x, y, y_pred, weight)

    def update_attached() -> None:
        forward()
        update()

    for metric in (*compiled, *attached):
        reason = fault(metric, update_attached if metric in attached else update)
        if reason is not None:
            raise errors.UserCodeError(
                f"The metric {metric.name}, {user.describe(metric)}, cannot be added up over "
                f"replicas: {reason}. To train on several, {_REMEDY}.",
                function="compile_model",
            )


def are_of_keras(model: Any) -> bool:
    """Whether all compiled metrics of a model are Keras' own, and so are their functions."""
    metrics = list(_compiled(model))
    makers = [
        *map(type, metrics),
        *(metric._fn for metric in metrics if hasattr(metric, "_fn")),
    ]
    return all(maker.__module__.startswith("keras.") for maker in makers)


def _compiled(model: Any) -> Iterator[Any]:
    """The metrics that a model is compiled with."""
    for metric in model.metrics:
        yield from getattr(metric, "metrics", ())


def _of_users(metrics: Iterable[Any]) -> list[Any]:
    """The metrics whose class is not Keras' own."""
    return [metric for metric in metrics if not type(metric).__module__.startswith("keras.")]


def fault(metric: Any, update: Callable[[], Any]) -> str | None:
    """Return why a metric cannot be added up, by a trial update from its reset state."""
    variables = [variable for variable in metric.variables if variable.aggregation in SUMMED]
    for summed in variables:
        if not (tf.as_dtype(summed.dtype).is_floating or tf.as_dtype(summed.dtype).is_integer):
            return f"{summed.path} is of type {summed.dtype}"
        if np.any(_number(summed)):
            return f"after reset_state {summed.path} is not zero"
    others = [
        attribute for attribute in vars(metric).values() if isinstance(attribute, tf.Variable)
    ]
    try:
        with _unchanged([*variables, *others]):
            added = _added(variables, [np.zeros(variable.shape) for variable in variables], update)
    except Exception as error:
        return (
            "update_state must work in a keras.StatelessScope, without tf.function and with the "
            f"variables of add_variable, but raises {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}"
        )
    for start in _starts(variables, added):
        again = added
        with contextlib.suppress(Exception):  # some metrics fail on an empty batch
            again = _added(variables, start, update)
        for variable, *values in zip(variables, start, added, again, strict=True):
            if not _alike(variable, *values):
                return f"what update_state adds to {variable.path} depends on what the metric holds"
    return None


@contextlib.contextmanager
def _unchanged(variables: Sequence[Any]) -> Iterator[None]:
    """Raise if the body changes these variables."""
    before = [_number(variable) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        if not np.array_equal(_number(variable), value):
            raise RuntimeError(f"{variable.name} is changed behind Keras' back")


def _added(variables: Sequence[Any], start: Sequence[Any], update: Callable[[], Any]) -> list[Any]:
    """The amounts that an update adds to the variables from these values, as float64."""
    tensors = [
        tf.cast(value, variable.dtype) for variable, value in zip(variables, start, strict=True)
    ]
    with keras.StatelessScope(state_mapping=list(zip(variables, tensors, strict=True))) as scope:
        update()
    ends = [_number(scope.get_current_value(variable)) for variable in variables]
    return [end - _number(value) for end, value in zip(ends, tensors, strict=True)]


def _starts(variables: Sequence[Any], added: Sequence[Any]) -> Iterator[list[Any]]:
    """States to update from: the state after one update, and some of larger numbers."""
    yield list(added)
    random = np.random.default_rng(0)
    larger = []
    for variable, value in zip(variables, added, strict=True):
        size = _SIZE + 4 * np.max(np.abs(value), where=np.isfinite(value), initial=0)
        size = min(size, float(tf.as_dtype(variable.dtype).max) / 8)
        # All numbers differ, because an update may copy one variable to another.
        larger.append(np.round(random.uniform(size / 2, size, value.shape)))
    yield larger
    if not any(tf.as_dtype(variable.dtype).is_unsigned for variable in variables):
        yield [-value for value in larger]


def _alike(variable: Any, start: Any, added: Any, again: Any) -> bool:
    """Whether an update added the same from a state as from zero, up to rounding."""
    kind = tf.as_dtype(variable.dtype)
    share = 0.0
    if kind.is_floating:
        precision = float(ml_dtypes.finfo(kind.as_numpy_dtype).eps)  # type: ignore[no-untyped-call]
        share = min(_ROUNDINGS * precision, 0.1)
    near = np.abs(again - added) <= share * np.maximum(np.abs(start), np.abs(added))
    return bool(np.all(near | (again == added) | (np.isnan(again) & np.isnan(added))))


def _number(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(value), np.float64)
