"""How far a step of all ranks lies from that of one process, on the process that has both."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfparallel_trainer.contract import verification
from tfparallel_trainer.objective import tracing
from tfparallel_trainer.objective.referee import comparison, findings, observations, reference_model

_KIND = verification.Quantity


@dataclasses.dataclass(frozen=True, slots=True)
class JudgedQuantity:
    """Something that is compared."""

    about: observations.ObservedQuantity
    key: str = ""
    """Of a variable."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of one comparison."""

    quantities: Sequence[JudgedQuantity]
    differences: Any
    """By quantity."""
    rounding: Any
    """As it was measured, by quantity; zeros where it was not."""
    limit: float
    """Of all differences, but for what was measured."""
    is_random: bool = False
    """Whether the step of one process gives different numbers each time."""

    @property
    def exceeds(self) -> Any:
        """Whether a difference is beyond the limit, by quantity."""
        return self.differences > self.limit

    def by_kind(self, limits: Any) -> dict[verification.Quantity, verification.Difference]:
        """The largest difference of each kind of quantity, next to its limit."""
        largest: dict[verification.Quantity, verification.Difference] = {}
        for quantity, value, limit in zip(self.quantities, self.differences, limits, strict=True):
            before = largest.get(quantity.about.kind)
            if before is None or value / limit > before.value / before.limit:
                largest[quantity.about.kind] = verification.Difference(float(value), float(limit))
        return largest


def combine(judgements: Sequence[Judgement]) -> tuple[Judgement, Any, Any]:
    """Return the first one, its limits, and which quantities differ in all of them."""
    first = judgements[0]
    rounding = np.max([judgement.rounding for judgement in judgements], 0)
    limits = np.maximum(first.limit, comparison.ROUNDINGS * rounding)
    return first, limits, np.all([judgement.differences > limits for judgement in judgements], 0)


class Judge:
    """Compares steps with those of the model of one process."""

    def __init__(self, model: reference_model.ReferenceModel) -> None:
        self._model = model
        self._limit = comparison.limit_of(model.model)
        self._precision = comparison.precision_of(model.model)

    def follow(self, outside: Sequence[tuple[tracing.Kind, Any]]) -> None:
        """Take the values of variables outside the model from those that ranks have."""
        self._model.follow(outside)

    def compare(
        self,
        step: int,
        examples: Any,
        before: reference_model.Wholes,
        of_ranks: reference_model.StepOutcome,
        *,
        measures: bool,
    ) -> Judgement:
        """Compare what ranks gave from a state; if asked, measure rounding there."""
        applied_gradients = of_ranks.gradients
        alone = self._model.run(step, examples, before, applied_gradients)
        quantities, differences = self._differences(of_ranks, alone, before)
        rounding = np.zeros(len(quantities))
        if not measures:
            return Judgement(quantities, differences, rounding, self._limit)
        again = self._model.run(step, examples, before, applied_gradients)
        random = self._differences(again, alone, before)[1]
        moved = reference_model.moved(before, self._model.trained, step, self._precision)
        nearby = self._model.run(step, examples, moved, applied_gradients)
        rounding = np.maximum(random, self._differences(nearby, alone, before)[1])
        is_random = bool((random > self._limit).any())
        return Judgement(quantities, differences, rounding, self._limit, is_random)

    def verdict(
        self,
        compared: Sequence[Judgement],
        step: int,
        examples: Any,
        before: reference_model.Wholes,
        *,
        divides_batch: bool,
    ) -> dict[verification.Quantity, verification.Difference]:
        """Return the largest differences by kind.

        Raises:
            VerificationError: a quantity differs in all comparisons.
        """
        first, limits, differs = combine(compared)
        if not differs.any():
            return first.by_kind(limits)
        differing = [
            quantity
            for quantity, is_fault in zip(first.quantities, differs, strict=True)
            if is_fault
        ]
        fault = self._kind_of(differing, examples, before, divides_batch=divides_batch)
        largest = float(first.differences[differs].max())
        raise findings.error(fault, step, [quantity.about for quantity in differing], largest)

    def _kind_of(
        self,
        differing: Sequence[JudgedQuantity],
        examples: Any,
        before: reference_model.Wholes,
        *,
        divides_batch: bool,
    ) -> findings.Fault:
        """The likely kind of a fault."""
        kinds = {quantity.about.kind for quantity in differing}
        assigned = self._model.assigned(examples, before)
        if kinds & {_KIND.LOSS, _KIND.GRADIENTS} and not (assigned and divides_batch):
            return findings.Fault.TOGETHER if divides_batch else findings.Fault.DIVIDED
        if kinds == {_KIND.METRICS}:
            return findings.Fault.METRIC
        is_assigned = _KIND.NON_TRAINABLE_STATE in kinds or assigned
        return findings.Fault.ASSIGNED if is_assigned else findings.Fault.UPDATE

    def _differences(
        self,
        first: reference_model.StepOutcome,
        second: reference_model.StepOutcome,
        before: reference_model.Wholes,
    ) -> tuple[list[JudgedQuantity], Any]:
        model = self._model
        quantities = [JudgedQuantity(observations.ObservedQuantity(_KIND.LOSS, ""))]
        pairs: list[tuple[Any, Any, float]] = [(first.loss, second.loss, 0.0)]
        floor = comparison.SMALL * math.hypot(*map(_norm, second.gradients.values()))
        for key in model.trained if model.takes_gradients else ():
            about = observations.ObservedQuantity(_KIND.GRADIENTS, model.path(key))
            quantities.append(JudgedQuantity(about, key))
            pairs.append((first.gradients[key], second.gradients[key], floor))
        for key, change in second.changes.items():
            about = observations.ObservedQuantity(model.kind(key), model.path(key))
            quantities.append(JudgedQuantity(about, key))
            stored = comparison.storing(model.dtype(key), self._limit) * _norm(before[key])
            pairs.append((first.changes[key], change, stored))
        for name, value in second.metrics.items():
            quantities.append(JudgedQuantity(observations.ObservedQuantity(_KIND.METRICS, name)))
            pairs.append((first.metrics.get(name, math.inf), value, 0.0))
        with np.errstate(all="ignore"):  # infinities
            apart = np.array([_norm(np.subtract(actual, other)) for actual, other, _ in pairs])
        scales = np.array([max(_norm(other), least) for _, other, least in pairs])
        return quantities, comparison.relative(apart, scales)


def _norm(values: Any) -> float:
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(np.ravel(values)))
