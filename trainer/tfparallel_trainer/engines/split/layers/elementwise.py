"""Checks that optimizers, constraints and regularisers can work on a part of a variable alone.

An optimizer that changes each element by its own gradient and state does the same to a part as to
the whole. An optimizer that uses a norm or a mean of the variable does not: it would use the
part's.
"""

from collections.abc import Mapping
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.layers import layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import operations

_NAMES = "SGD RMSprop Adam AdamW Adamax Nadam Adagrad Adadelta Ftrl Lion ScheduleFreeAdamW"
ELEMENTWISE = frozenset(getattr(keras.optimizers, name) for name in _NAMES.split())
"""Optimizers that change each element by itself. Clipping by norms is the engine's own."""

REASONS: Mapping[type, str] = {
    keras.optimizers.Lamb: "takes the norms of each variable and of its update",
    keras.optimizers.Adafactor: "takes means over each variable",
    keras.optimizers.Muon: "makes the update of each matrix orthogonal",
}
"""Why other optimizers do not."""

_NORMS = (keras.constraints.MaxNorm, keras.constraints.MinMaxNorm, keras.constraints.UnitNorm)
_SUMS = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


def check_optimizer(
    optimizer: Any, variables: Mapping[str, Any], shards: Mapping[str, registry.Shard]
) -> None:
    """Refuse (UserCodeError) an optimizer that cannot train parts, if a variable is cut."""
    if is_elementwise(optimizer):
        return
    kind = _kind(optimizer)
    for key, variable in variables.items():
        if variable.trainable and not shards[key].layout.is_whole:
            raise errors.UserCodeError(
                f"The optimizer {kind.__name__} {_reason(kind)}, but {variable.path} is divided "
                "over ranks. Give mesh.stage and mesh.data instead of mesh.tensor, or compile the "
                "model with an optimizer such as AdamW.",
                function="compile_model",
            )


def check_state_sharding(optimizer: Any) -> None:
    """Refuse (UserCodeError) an optimizer that cannot train slices of variables."""
    if not is_elementwise(optimizer):
        kind = _kind(optimizer)
        raise errors.UserCodeError(
            f"The optimizer {kind.__name__} {_reason(kind)}, and with mesh.shardOptimizer each "
            "replica updates a slice of each variable only. Remove mesh.shardOptimizer, or compile "
            "the model with an optimizer such as AdamW.",
            function="compile_model",
        )


def is_elementwise(optimizer: Any) -> bool:
    """Whether an optimizer, with loss scaling or without, changes each element by itself."""
    return _kind(optimizer) in ELEMENTWISE


def _kind(optimizer: Any) -> type:
    return type(getattr(optimizer, "inner_optimizer", optimizer))


def _reason(kind: type) -> str:
    return REASONS.get(kind, "is not known to change each element by itself")


def check_variable(variable: Any, variable_layout: layout.Layout) -> None:
    """Refuse (CannotSplitError) a variable whose constraint or regularizer needs all of it."""
    cut = {index for index, cut in enumerate(variable_layout.cuts) if cut is not None}
    if not cut:
        return
    constraint, regularizer = variable.constraint, variable.regularizer
    if not is_local(constraint, cut, len(variable_layout.cuts)):
        raise registry.CannotSplitError(
            f"the constraint {type(constraint).__name__} of {variable.path} needs more than a "
            "part: do without, or replicate the layer"
        )
    if regularizer is not None and type(regularizer) not in _SUMS:
        raise registry.CannotSplitError(
            f"the regularizer {type(regularizer).__name__} of {variable.path} is no sum over "
            "elements: give L1 or L2, or replicate the layer"
        )


def is_local(constraint: Any, cut: set[int], rank: int) -> bool:
    """Whether a constraint, or None, has the same effect if some dimensions are sharded."""
    if constraint is None or type(constraint) is keras.constraints.NonNeg:
        return True
    if type(constraint) not in _NORMS:
        return False
    return not cut.intersection(operations.axes(constraint.axis, rank))
