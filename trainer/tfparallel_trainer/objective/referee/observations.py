"""What is compared of a rank, and what one side of a check gave of it."""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer.contract import verification
from tfparallel_trainer.objective import checks
from tfparallel_trainer.objective.referee import comparison, snapshots
from tfparallel_trainer.objective.replica import Replica

_KIND = verification.Quantity


@dataclasses.dataclass(frozen=True, slots=True)
class ObservedQuantity:
    """Something that is compared."""

    kind: verification.Quantity
    name: str
    """The path of a variable, or the name of a metric; empty for the loss."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """A variable whose change is compared."""

    quantity: ObservedQuantity
    handle: snapshots.Handle
    is_shared: bool
    """Whether all ranks have the same value between steps."""


def observe(outcome: Any, variables: Sequence[Variable], before: snapshots.VariableSnapshot) -> Any:
    """The projections of what a rank gave, and of what it has changed since a snapshot.

    An array [quantities, `comparison.PROJECTIONS`], in the order of `quantities`.
    """
    loss, gradients, metrics = outcome
    return np.array(
        [
            comparison.projections(snapshots.as_float64(loss)),
            *(_projections(gradient) for phase in gradients for gradient in phase),
            *(comparison.projections(before.change(variable.handle)) for variable in variables),
            *(
                comparison.projections(snapshots.as_float64(metrics[name]))
                for name in sorted(metrics)
            ),
        ]
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Variables:
    """Those of a rank that a check looks at, as they were when it was traced."""

    trained: list[Any]
    """Keras variables that gradients belong to, of one phase after the other."""
    changing: list[Variable]
    """Those whose changes are compared."""


def variables_of(replica: Replica, function: Any = None) -> Variables:
    """The variables of a rank that are compared; `function` is its traced reference, if any.

    Seeds differ by rank, and metrics are compared by themselves. Of what is neither the model's nor
    the optimizer's, numbers that are no floats are left out: generators of random numbers.
    """
    skipped = {id(variable) for variable, _ in replica.seeds} | set(
        map(id, replica.model.metrics_variables)
    )
    trained = [variable for phase in replica.computations for variable in phase.variables]
    are_trained = set(map(id, trained))
    following = {id(variable) for variable in _following(replica.model)}
    optimizer = {id(variable) for variable in replica.optimizer.variables}
    variables = []
    for variable in replica.state():
        if id(variable) in skipped or variable.dtype == "string":
            continue
        kind = _KIND.WEIGHTS if id(variable) in are_trained else _KIND.NON_TRAINABLE_STATE
        kind = _KIND.OPTIMIZER_STATE if id(variable) in optimizer else kind
        is_shared = id(variable) not in following
        variables.append(
            Variable(ObservedQuantity(kind, variable.path), variable.value.handle, is_shared)
        )
    known_handles = {id(changing.handle) for changing in variables}
    known_handles |= {id(variable.value.handle) for variable, _ in replica.seeds}
    known_handles |= {id(variable.value.handle) for variable in replica.model.metrics_variables}
    if function is None:
        return Variables(trained, variables)
    names = {id(variable.handle): variable.name for variable in function.graph.variables}
    for handle in snapshots.handles_of(function):
        dtype = snapshots.dtype_of(handle)
        if id(handle) not in known_handles and dtype is not None and not dtype.is_integer:
            name = names.get(id(handle), "a variable").removesuffix(":0")
            variables.append(Variable(outside(name), handle, is_shared=True))
    return Variables(trained, variables)


def outside(name: str) -> ObservedQuantity:
    """What is compared of a variable of neither the model nor the optimizer."""
    return ObservedQuantity(_KIND.NON_TRAINABLE_STATE, f"{name} (not of the model)")


def quantities(variables: Variables, metrics: Sequence[str]) -> list[ObservedQuantity]:
    """What is compared, in the order of `differences`."""
    return [
        ObservedQuantity(_KIND.LOSS, ""),
        *(ObservedQuantity(_KIND.GRADIENTS, variable.path) for variable in variables.trained),
        *(variable.quantity for variable in variables.changing),
        *(ObservedQuantity(_KIND.METRICS, name) for name in sorted(metrics)),
    ]


def structure(replica: Replica, variables: Variables) -> int:
    """A number that differs if ranks compare other variables, or train others of them."""
    trained = {id(weight) for weight in replica.model.trainable_variables}
    flags = [
        (tuple(variable.shape), variable.dtype, id(variable) in trained)
        for variable in replica.state()
    ]
    return zlib.crc32(repr((len(variables.changing), flags)).encode())


def states(variables: Variables) -> Any:
    """The projections of the variables themselves."""
    arrays = (
        snapshots.as_float64(snapshots.read(variable.handle)) for variable in variables.changing
    )
    return np.array([comparison.projections(array) for array in arrays])


def _projections(gradient: Any) -> Any:
    if gradient is None:
        return np.zeros(comparison.PROJECTIONS)
    if isinstance(gradient, (tuple, list)):
        values, rows = gradient
        return comparison.projections(snapshots.as_float64(values), rows.numpy())
    return comparison.projections(snapshots.as_float64(gradient))


def following_layers(model: Any) -> list[Any]:
    """The layers of which users are told that each replica's follow its own part of a batch."""
    return [layer for layer in checks.layers(model) if follows(layer)]


def follows(layer: Any) -> bool:
    """Whether a layer's statistics follow each replica's own part of a batch."""
    return (
        isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and not layer.synchronized
    )


def _following(model: Any) -> list[Any]:
    return [weight for layer in following_layers(model) for weight in layer.non_trainable_weights]
