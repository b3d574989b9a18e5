"""What all ranks learn of each rank's comparison, so that they decide from the same numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.contract import verification
from tfparallel_trainer.objective import replica, state
from tfparallel_trainer.objective.referee import comparison, observations, snapshots

_WIDTH = comparison.PROJECTIONS


@dataclasses.dataclass(frozen=True, slots=True)
class RankRow:
    """What a rank tells the others: projections of both sides, and of its variables."""

    ranks: Any
    """As `observations.observe` gives it."""
    alone: Any
    again: Any
    """The second side once more; like the next two, as before where nothing was measured."""
    moved_ranks: Any
    """Both sides after a rounding of each weight."""
    moved_alone: Any
    states: Any
    """As `observations.states` gives it."""

    def numbers(self) -> Any:
        """The row as float64."""
        fields = (getattr(self, field.name) for field in dataclasses.fields(self))
        return np.concatenate([np.ravel(field) for field in fields])


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """What all ranks know: the largest relative differences over ranks."""

    differences: Any
    """Between the two sides of a rank, by quantity."""
    between: Any
    """Between the second side of a rank and that of the first one, by quantity."""
    rounding: Any
    """Between a side and the same after a rounding, by quantity."""
    random: float
    """Between the second side and the same once more."""
    states: Any
    """Between a variable of a rank and that of the first one."""
    is_complete: bool
    """Whether each rank has a second side, which is not a number at all where it has none."""

    @property
    def apart(self) -> Any:
        """The largest difference of each quantity."""
        return np.maximum(self.differences, self.between)


class TableExchange:
    """Gives all processes the rows of all ranks."""

    def __init__(self, replicas: Sequence[replica.Replica]) -> None:
        self._replicas = replicas
        self._functions = [
            tf.function(self._gathering(variant), autograph=False) for variant in range(3)
        ]

    def gather(self, rows: Sequence[Any], variant: int = 0) -> Any:
        """The rows of all ranks [ranks, n], from those of this process's; n follows the variant."""
        tensors = [tf.constant(np.asarray(row), tf.float64) for row in rows]
        return self._functions[variant](tensors).numpy()

    def table(
        self,
        rows: Sequence[RankRow],
        variables: observations.Variables,
        takes_part: Sequence[bool],
        limit: float,
    ) -> Table:
        """Combine the rows of all ranks; of some, the two sides are not compared."""
        numbers = self.gather([row.numbers() for row in rows], 1)
        count, changing = len(rows[0].ranks), variables.changing
        sides = numbers[:, : 5 * count * _WIDTH].reshape(-1, 5, count, _WIDTH)
        ranks, alone, again, moved_ranks, moved_alone = sides.swapaxes(0, 1)
        states = numbers[:, 5 * count * _WIDTH :].reshape(len(numbers), -1, _WIDTH)
        scales = _scales(alone, states, variables, limit)
        shared = np.ones(count)
        first = 1 + len(variables.trained)
        shared[first : first + len(changing)] = [variable.is_shared for variable in changing]
        are_shared = np.array([variable.is_shared for variable in changing], np.float64)

        def largest(values: Any, other: Any) -> Any:
            with np.errstate(all="ignore"):  # infinities
                return comparison.relative(comparison.norms(values - other), scales).max(0)

        chosen = np.array(takes_part)[:, np.newaxis, np.newaxis]
        return Table(
            differences=largest(np.where(chosen, ranks, alone), alone),
            between=largest(alone, alone[:1]) * shared,
            rounding=np.maximum(largest(moved_ranks, ranks), largest(moved_alone, alone)),
            random=float(largest(again, alone).max()),
            states=_between_ranks(states) * are_shared,
            is_complete=not np.isnan([alone, again, moved_alone]).all((2, 3)).any(),
        )

    def deviations(self, variables: Sequence[observations.Variables]) -> Any:
        """How far ranks lie apart in each variable, without a step."""
        rows = self.gather(
            [observations.states(variables_of_rank).reshape(-1) for variables_of_rank in variables],
            2,
        )
        are_shared = np.array(
            [variable.is_shared for variable in variables[0].changing], np.float64
        )
        return _between_ranks(rows.reshape(len(rows), -1, _WIDTH)) * are_shared

    def _gathering(self, variant: int) -> Any:
        def run(rows: Sequence[tf.Tensor]) -> tf.Tensor:
            remaining = iter(rows)
            return state.on_each(
                self._replicas,
                collectives.Program.COMPARE,
                lambda rank_replica: rank_replica.data.gather(next(remaining)),
                variant,
            )[0]

        return run


def _between_ranks(states: Any) -> Any:
    """The largest relative difference to the first rank, by variable."""
    with np.errstate(all="ignore"):  # infinities
        apart = comparison.norms(states - states[0])
    return comparison.relative(apart, comparison.norms(states[:1])).max(0)


def _scales(alone: Any, states: Any, variables: observations.Variables, limit: float) -> Any:
    """What differences are relative to [ranks, quantities]."""
    scales = comparison.norms(alone)
    first = 1 + len(variables.trained)
    gradients = scales[:, 1:first]
    floors = comparison.SMALL * np.sqrt(np.square(gradients).sum(1, keepdims=True))
    scales[:, 1:first] = np.maximum(gradients, floors)
    stored = [
        comparison.storing(snapshots.dtype_of(variable.handle), limit)
        for variable in variables.changing
    ]
    changes = slice(first, first + len(stored))
    scales[:, changes] += np.array(stored) * comparison.norms(states)
    return scales


def by_kind(
    quantities: Sequence[observations.ObservedQuantity], apart: Any, limits: Any
) -> dict[verification.Quantity, verification.Difference]:
    """The largest difference of each kind of quantity, next to its limit."""
    largest: dict[verification.Quantity, verification.Difference] = {}
    for quantity, value, limit in zip(quantities, apart, limits, strict=True):
        before = largest.get(quantity.kind)
        if before is None or value / limit > before.value / before.limit:
            largest[quantity.kind] = verification.Difference(float(value), float(limit))
    return largest
