"""Compares steps with one process: when, on which examples, and what follows.

A check takes the state as it is after a step. It runs the ranks' step on a few examples, and the
same in one process, from the same state, and restores it. Both apply the ranks' gradients. All
ranks compute the second side, so it also finds a model that differs between processes. Where a
difference is beyond its limit, the check is repeated at other weights near by, and rounding is
measured there: a fault remains, a rounding does not.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.contract import verification
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.objective import replica
from tfparallel_trainer.objective.referee import (
    comparison,
    findings,
    observations,
    sampling,
    sides,
    tables,
    trials,
)

_NO_MEMORY = "a device has no memory left for the examples of all ranks"


class CheckSchedule:
    """When a check is due: after steps 1, 2, 4, 8 and so on, counted from each start.

    So is one after the first batch of each kind of division. So are those after changes 1, 2, 4, 8
    and so on that observers make to variables. All processes count alike.
    """

    def __init__(self, ranks: int, *, always: bool) -> None:
        self._ranks = ranks
        self._always = always
        self._steps = self._changes = 0
        self._divisions: set[sampling.Division] = set()

    def steps_to_check(self, examples: int, *, changed: bool = False) -> int:
        """How many steps on batches of so many examples end with one that is to be checked.

        It changes nothing. If steps are not finite, the check comes later.
        """
        is_new = sampling.division(examples, self._ranks) not in self._divisions
        if self._always or changed or is_new:
            return 1
        return (1 << self._steps.bit_length()) - self._steps

    def is_due(self, examples: int, *, changed: bool = False) -> bool:
        """Whether the step on a batch of so many examples, which is made, is to be checked.

        `changed`: observers have changed variables since the step before.
        """
        self._steps += 1
        self._changes += changed
        division = sampling.division(examples, self._ranks)
        is_new = division not in self._divisions
        self._divisions.add(division)
        is_doubled = _is_power_of_two(self._steps)
        is_doubled |= changed and _is_power_of_two(self._changes)
        return self._always or is_new or is_doubled


class ReplicaReferee:
    """Checks the steps of the ranks of this process together with those of all others."""

    def __init__(
        self, replicas: Sequence[replica.Replica], trial: trials.Trial, spec: Any, *, always: bool
    ) -> None:
        """`spec`: tf.TensorSpec [None, …] of a part."""
        self._replicas = replicas
        self._ranks = replicas[0].data.size
        self._schedule = CheckSchedule(self._ranks, always=always)
        self._gather = sampling.Gathering(replicas, spec)
        self._limit = max(comparison.limit_of(rank_replica.model) for rank_replica in replicas)
        self._precision = max(
            comparison.precision_of(rank_replica.model) for rank_replica in replicas
        )
        self._sides = sides.Sides(replicas, trial, spec)
        self._exchange = tables.TableExchange(replicas)
        self._quantities: list[observations.ObservedQuantity] = []
        self._most = sampling.MOST
        """Examples of a check; fewer once a device had no memory for them."""
        self._obstacle: str | None = None
        """Why steps cannot be compared."""
        self.steps_to_check = self._schedule.steps_to_check

    def __call__(
        self, step: int, batch: batch_division.Batch, changed: bool = False
    ) -> Callable[[], verification.Check] | None:
        """Return the check of the step of a number, from 1, that was made on a batch, if it is due.

        `changed`: observers have changed variables since the step before.
        """
        if not self._schedule.is_due(batch.examples, changed=changed):
            return None
        return functools.partial(self._verify, step, batch)

    def _verify(self, step: int, batch: batch_division.Batch) -> verification.Check:
        """Compare a step.

        Raises:
            VerificationError: it differs from one process; raised on all processes.
        """
        while self._obstacle is None:
            counts = sampling.counts(batch.examples, self._ranks, self._most)
            self._obstacle = self._prepare(step, counts)
            if self._obstacle is None:
                check = self._check(step, batch, counts)
                if check is not None:
                    return check
                self._take_fewer(sum(counts))
        self._compare_variables(step)
        return findings.incomparable(step, self._obstacle, has_copies=self._ranks > 1)

    def _take_fewer(self, examples: int) -> None:
        """Halve the number of examples of a check, but keep two of each rank."""
        self._most = examples // 2
        if self._most < 2 * self._ranks:
            self._obstacle = _NO_MEMORY

    def _compare_variables(self, step: int) -> None:
        """Compare the variables of ranks, where nothing else can be compared."""
        variables = [observations.variables_of(rank_replica) for rank_replica in self._replicas]
        self._refuse_structures(step, variables)
        apart = self._exchange.deviations(variables)
        if (apart > self._limit).any():
            differing = np.flatnonzero(apart > self._limit)
            named = [variables[0].changing[index].quantity for index in differing]
            raise findings.error(findings.Fault.STATE, step, named, apart.max())

    def _sample(
        self, step: int, batch: batch_division.Batch, counts: Sequence[int]
    ) -> sides.Sample:
        """Choose the examples of a check."""
        parts = [
            sampling.choose(part, counts[rank_replica.data.index])
            if counts[rank_replica.data.index]
            else None
            for rank_replica, part in zip(self._replicas, batch.parts, strict=True)
        ]
        return sides.Sample(step, self._gather(parts), counts)

    def _prepare(self, step: int, counts: Sequence[int]) -> str | None:
        """Trace both sides; return why that is impossible, the same on all processes."""
        reason = None
        try:
            self._sides.prepare(counts)
        except sides.IncomparableError as error:
            reason = str(error)
        except Exception as error:  # of the user's code, or of what a layer does in a check
            reason = findings.describe_failure(error)
        can_compute = self._exchange.gather([[float(not reason)]] * len(self._replicas))
        if not can_compute.all():
            return reason or "another process cannot compute the step alone"
        self._refuse_structures(step, self._sides.variables)
        self._quantities = observations.quantities(self._sides.variables[0], self._sides.metrics)
        return None

    def _refuse_structures(self, step: int, variables: Sequence[observations.Variables]) -> None:
        """End the job if ranks have other variables, or train others of them."""
        pairs = zip(self._replicas, variables, strict=True)
        structures = self._exchange.gather(
            [[float(observations.structure(*pair))] for pair in pairs]
        )
        if (structures != structures[0]).any():
            raise findings.training_differs(step)

    def _check(
        self, step: int, batch: batch_division.Batch, counts: Sequence[int]
    ) -> verification.Check | None:
        """Compare, and repeat it where something differs; None if a device has no memory for it."""
        sample = self._sample(step, batch, counts)
        # Where the batch leaves no rank empty, one that is empty in the check says nothing.
        takes_part = [batch.examples < self._ranks or count > 0 for count in counts]
        table = self._compare(sample, takes_part)
        if not table.is_complete:
            return None
        if (table.states > self._limit).any():
            self._refuse_states(sample.step, table)
        limits = np.full(table.apart.shape, self._limit)
        if (table.apart > limits).any():
            repeated = []
            for repetition in range(comparison.REPETITIONS):
                seed = comparison.REPETITIONS * sample.step + repetition
                with self._sides.moved(seed, comparison.DISPLACEMENT):
                    repeated.append(self._compare(sample, takes_part, measures=True))
            if not all(repetition.is_complete for repetition in repeated):
                return None
            if max(repetition.random for repetition in repeated) > self._limit:
                self._obstacle = findings.RANDOM
                return findings.incomparable(step, findings.RANDOM, has_copies=self._ranks > 1)
            rounding = np.max([repetition.rounding for repetition in repeated], 0)
            limits = np.maximum(limits, comparison.ROUNDINGS * rounding)
            differs = np.all([repetition.apart > limits for repetition in (table, *repeated)], 0)
            if differs.any():
                self._refuse(sample, table, differs)
        largest = tables.by_kind(self._quantities, table.apart, limits)
        return verification.Check(sample.step, largest, self._omitted(takes_part))

    def _compare(
        self, sample: sides.Sample, takes_part: Sequence[bool], *, measures: bool = False
    ) -> tables.Table:
        """Run both sides from the state as it is; all ranks get what each of them has."""
        states = [observations.states(variables) for variables in self._sides.variables]
        ranks, gradients = self._sides.run_ranks(sample)
        alone = self._run_alone(sample, gradients)
        again, moved_ranks, moved_alone = alone, ranks, alone
        if measures:
            again = self._run_alone(sample, gradients)
            with self._sides.moved(sample.step, self._precision):
                moved_ranks, _ = self._sides.run_ranks(sample)
                moved_alone = self._run_alone(sample, gradients)
        fields = zip(ranks, alone, again, moved_ranks, moved_alone, states, strict=True)
        rows = [tables.RankRow(*row) for row in fields]
        return self._exchange.table(rows, self._sides.variables[0], takes_part, self._limit)

    def _run_alone(self, sample: sides.Sample, gradients: Sequence[Any]) -> list[Any]:
        """Run the second side; gives no numbers at all where its device has no memory for it."""
        try:
            return self._sides.run_alone(sample, gradients)
        except tf.errors.ResourceExhaustedError:  # the others wait for what this rank tells them
            shape = len(self._quantities), comparison.PROJECTIONS
            return [np.full(shape, np.nan)] * len(self._replicas)

    def _refuse_states(self, step: int, table: tables.Table) -> None:
        """End the job because ranks have other values of a variable, or gave it other values."""
        variables = [variable.quantity for variable in self._sides.variables[0].changing]
        named = [variables[index] for index in np.flatnonzero(table.states > self._limit)]
        places = [index for index, quantity in enumerate(self._quantities) if quantity in named]
        fault = findings.Fault.STATE
        if (table.differences[places] > self._limit).any():
            fault = findings.Fault.ASSIGNED
        elif (table.between[places] > self._limit).any():
            fault = findings.Fault.MODEL
        raise findings.error(fault, step, named, table.states.max())

    def _refuse(self, sample: sides.Sample, table: tables.Table, differs: Any) -> None:
        """End the job because of quantities that differ."""
        named = [self._quantities[index] for index in np.flatnonzero(differs)]
        fault = findings.kind_of(
            named,
            between_ranks=bool((table.between > self._limit)[differs].any()),
            undivided=self._differs_undivided(sample),
        )
        raise findings.error(fault, sample.step, named, table.apart[differs].max())

    def _differs_undivided(self, sample: sides.Sample) -> bool:
        """Whether a rank alone computes another loss of all examples than Keras does."""
        if len(self._replicas[0].computations) > 1:
            return False
        loss = self._sides.loss(sample)
        return abs(self._sides.undivided_loss(sample) - loss) > self._limit * abs(loss)

    def _omitted(self, takes_part: Sequence[bool]) -> list[str]:
        """What a check does not compare."""
        omitted = []
        if self._ranks > 1 and observations.following_layers(self._replicas[0].model):
            omitted.append("BatchNormalization of each replica's own examples")
        if not all(takes_part):
            omitted.append(f"the state of {takes_part.count(False)} ranks without examples here")
        return omitted


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0
