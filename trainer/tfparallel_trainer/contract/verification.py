"""How near training is to one process: what a check compares, and what a job's status shows.

Differences are relative: the norm of the difference of two arrays over the norm of one of them.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

import pydantic

from tfparallel_trainer.contract import base, limits


class Quantity(enum.StrEnum):
    """What a check compares, in the order in which a step computes it."""

    LOSS = "loss"
    GRADIENTS = "gradients"
    WEIGHTS = "weights"
    OPTIMIZER_STATE = "optimizer state"
    NON_TRAINABLE_STATE = "non-trainable state"
    METRICS = "metrics"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The largest relative difference of a quantity, and what rounding explains."""

    value: float
    limit: float


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One comparison of a step with one process that found no fault."""

    step: int
    """Optimizer steps made with it, from 1."""
    differences: Mapping[Quantity, Difference]
    """By quantity; empty where the step could not be compared."""
    omitted: Sequence[str] = ()
    """What was not compared and why, as sentences without a period."""

    @property
    def sentence(self) -> str:
        """Say for people what was compared, and how near it is."""
        shown = [
            _show(quantity.value, _format(difference.value), _format(difference.limit))
            for quantity, difference in self._in_order()
        ]
        return _describe(f"Step {self.step}", shown, self.omitted)

    def _in_order(self) -> list[tuple[Quantity, Difference]]:
        return [
            (quantity, self.differences[quantity])
            for quantity in Quantity
            if quantity in self.differences
        ]


class Comparison(base.Model):
    """How near a quantity is to one process."""

    quantity: Quantity
    """What is compared."""

    difference: limits.NumberText
    """The largest relative difference of all checks."""

    limit: limits.NumberText
    """What rounding explains, for the type and the size of the numbers."""


class Verification(base.Model):
    """What the checks of `trainer.verify` have compared with one process."""

    checks: Annotated[limits.Count, pydantic.Field(ge=1)]
    """How often this attempt has compared a step."""

    step: limits.Count
    """The step that was compared last."""

    compared: Annotated[
        tuple[Comparison, ...], pydantic.Field(max_length=limits.MAX_QUANTITIES)
    ] = ()
    """The quantities that were compared."""

    omitted: Annotated[
        tuple[limits.OmissionText, ...], pydantic.Field(max_length=limits.MAX_OMISSIONS)
    ] = ()
    """What the last check did not compare, and why."""

    @classmethod
    def with_check(cls, earlier: Self | None, check: Check) -> Self:
        """Add a check to those before it: of each quantity the largest difference stays."""
        compared = (
            {}
            if earlier is None
            else {comparison.quantity: comparison for comparison in earlier.compared}
        )
        for quantity, newest in check.differences.items():
            before = compared.get(quantity)
            if before is None or newest.value >= float(before.difference):
                compared[quantity] = Comparison(
                    quantity=quantity,
                    difference=_format(newest.value),
                    limit=_format(newest.limit),
                )
        return cls(
            checks=1 if earlier is None else earlier.checks + 1,
            step=min(check.step, limits.MAX_COUNT),
            compared=tuple(compared[quantity] for quantity in Quantity if quantity in compared),
            omitted=tuple(
                limits.printable(reason, limits.MAX_OMISSION_LETTERS)
                for reason in check.omitted[: limits.MAX_OMISSIONS]
            ),
        )

    @property
    def sentence(self) -> str:
        """Say for people what was compared, and how near it is."""
        shown = [
            _show(comparison.quantity.value, comparison.difference, comparison.limit)
            for comparison in self.compared
        ]
        often = "1 check" if self.checks == 1 else f"{self.checks} checks"
        return _describe(f"Step {self.step} ({often})", shown, self.omitted)


def _format(value: float) -> str:
    return f"{value:.2g}"


def _show(name: str, difference: str, limit: str) -> tuple[str, str]:
    return f"{name} {difference}", f"limit {limit}"


def _describe(head: str, shown: Sequence[tuple[str, str]], omitted: Sequence[str]) -> str:
    """Write the limit once where it is that of all quantities."""
    omission = f"not compared: {'; '.join(omitted)}" if omitted else ""
    if not shown:
        return f"{head} is {omission or 'not compared'}"
    if len({limit for _, limit in shown}) == 1:
        quantities = f"{', '.join(name for name, _ in shown)} ({shown[0][1]})"
    else:
        quantities = ", ".join(f"{name} ({limit})" for name, limit in shown)
    return f"{head} equals one process: {quantities}" + (f"; {omission}" if omission else "")
