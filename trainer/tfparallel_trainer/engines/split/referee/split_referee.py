"""Compares steps of a divided model with one process: when, on which examples, what follows.

A check takes the state as it is after a step. All ranks make the same training step on a few
examples of its batch, and the state is restored. The first process has the model of one process in
its host's memory. It computes the same step, applies the ranks' gradients, and compares. Where a
difference is beyond its limit, the check is repeated at other weights near by, and rounding is
measured there: a fault remains, a rounding does not. All processes hear the verdict.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.contract import verification
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.engines.split.execution import ranks
from tfparallel_trainer.engines.split.referee import single_process, step_trial
from tfparallel_trainer.objective import tracing
from tfparallel_trainer.objective.referee import (
    comparison,
    findings,
    judgement,
    observations,
    reference_model,
    replica_referee,
)

_KIND = verification.Quantity


class _ObstacleError(Exception):
    """Steps cannot be compared; the text says why."""


class SplitReferee:
    """Checks the steps of the ranks of this process together with those of all others."""

    def __init__(
        self,
        local_ranks: ranks.Ranks,
        trials: step_trial.Trials,
        build: Callable[[], judgement.Judge],
        *,
        always: bool,
    ) -> None:
        """Take the ranks and their trials; `build` makes the judge, on the first process."""
        self._ranks = local_ranks
        self._trials = trials
        divided = local_ranks.partition
        self._parts = divided.mesh.data * divided.microbatches
        self._schedule = replica_referee.CheckSchedule(self._parts, always=always)
        self._build = build
        self._judge: judgement.Judge | None = None
        """On the first process, once it is needed."""
        self._can_gather = False
        """Whether all processes know that the whole model may be gathered."""
        self._obstacle = trials.obstacle

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
        has_copies = self._refuse_deviations(step)
        self._refuse_other_closures(step)
        if not self._obstacle:
            try:
                return self._check(step, batch)
            except _ObstacleError as error:
                self._obstacle = str(error)
        return findings.incomparable(step, self._obstacle, has_copies=has_copies)

    def _check(self, step: int, batch: batch_division.Batch) -> verification.Check:
        """Compare, and repeat it where something differs."""
        if not self._can_gather:
            self._require_memory()
        sample = self._trials.sample(step, batch)
        self._prepare(sample)
        compared: list[judgement.Judgement] = []
        before = self._compare(sample, compared)
        if self._led(lambda: bool(compared[0].exceeds.any())):
            for seed in range(comparison.REPETITIONS):
                self._compare(sample, compared, comparison.REPETITIONS * step + seed)
        verdict = self._led(lambda: self._verdict(sample, before, compared))
        if verdict["fault"]:
            raise errors.VerificationError(verdict["fault"]).on_every_process()
        differences = {
            _KIND(name): verification.Difference(*pair)
            for name, pair in verdict["differences"].items()
        }
        return verification.Check(step, differences, self._trials.omitted)

    def _require_memory(self) -> None:
        """Find whether the first process has the whole model, and all may gather it."""
        weights = self._ranks.partition.model.variables.values()
        self._agree(
            single_process.find_obstacle(sum(math.prod(variable.shape) for variable in weights))
        )

        def build() -> None:
            self._judge = self._build()

        self._led(build)
        self._can_gather = True

    def _prepare(self, sample: step_trial.TrialSample) -> None:
        """Trace the step of all ranks."""
        reason = ""
        try:
            self._trials.prepare(sample.shares)
        except Exception as error:  # of the user's code, or of what a layer does in a check
            reason = findings.describe_failure(error)
        self._agree(reason)

    def _agree(self, obstacle: str) -> None:
        """Tell all processes the obstacle of this one, if it has one."""
        if self._ranks.combine(np.array([float(bool(obstacle))]))[0]:
            raise _ObstacleError(obstacle or "another process cannot take part in a check")

    def _compare(
        self,
        sample: step_trial.TrialSample,
        compared: list[judgement.Judgement],
        seed: int | None = None,
    ) -> reference_model.Wholes:
        """Make the step on all ranks, and compare it; return the state that it began with.

        With a seed the weights are moved before, and rounding is measured.
        """
        trials = self._trials
        with trials.restored():
            before = trials.gathering.state()
            if seed is not None:
                trained = trials.gathering.trained
                trials.assign(
                    reference_model.moved(before, trained, seed, comparison.DISPLACEMENT), trained
                )
                before = trials.gathering.state()  # as its types hold it
            of_ranks = trials.run(sample, before)

        def compare() -> None:
            judge = self._required_judge()
            judge.follow(tracing.read(self._ranks.local[0].head.closures))
            measures = seed is not None
            compared.append(
                judge.compare(sample.step, sample.whole, before, of_ranks, measures=measures)
            )

        self._led(compare)
        return before

    def _verdict(
        self,
        sample: step_trial.TrialSample,
        before: reference_model.Wholes,
        compared: Sequence[judgement.Judgement],
    ) -> dict[str, Any]:
        """The first process's verdict on its comparisons."""
        if any(one.is_random for one in compared):
            raise _ObstacleError(findings.RANDOM)
        several = self._parts > 1
        try:
            differences = self._required_judge().verdict(
                compared, sample.step, sample.whole, before, divides_batch=several
            )
        except errors.VerificationError as error:
            return {"fault": str(error)}
        pairs = {kind.value: (value.value, value.limit) for kind, value in differences.items()}
        return {"fault": "", "differences": pairs}

    def _required_judge(self) -> judgement.Judge:
        if self._judge is None:  # the first process alone compares, and has it then
            raise TypeError("no model of one process")
        return self._judge

    def _refuse_deviations(self, step: int) -> bool:
        """End the job if ranks have other copies of one variable; gives whether there are any."""
        apart = self._trials.gathering.deviations(self._trials.following)
        variables = self._ranks.partition.model.variables
        limit = self._trials.limit
        differing = [key for key, value in apart.items() if value > limit]
        if not differing:
            return bool(apart)
        gathers = all(key in variables and not variables[key].trainable for key in differing)
        fault = findings.Fault.ASSIGNED if gathers else findings.Fault.STATE
        named = [
            observations.ObservedQuantity(
                _KIND.NON_TRAINABLE_STATE if gathers else _KIND.WEIGHTS,
                variables[key].path if key in variables else "the optimizer",
            )
            for key in differing
        ]
        raise findings.error(fault, step, named, max(apart[key] for key in differing))

    def _refuse_other_closures(self, step: int) -> None:
        """End the job if ranks have other values of a variable outside the model."""
        closures = [rank.head.closures for rank in self._ranks.local]
        projected = np.array(
            [
                [
                    comparison.projections(reference_model.value_of(closure))
                    for closure in closures_of_rank
                ]
                for closures_of_rank in closures
            ]
        )
        if not projected.size:
            return
        leading = projected[0] if self._ranks.leads else np.zeros_like(projected[0])
        first = self._ranks.combine(leading.reshape(-1)).reshape(leading.shape)
        squares = np.square(comparison.norms(projected - first)).sum(0)
        apart = np.sqrt(self._ranks.combine(squares))
        relative = comparison.relative(apart, comparison.norms(first))
        differing = np.flatnonzero(relative > self._trials.limit)
        if len(differing):
            named = [observations.outside(closures[0][index].path) for index in differing.tolist()]
            raise findings.error(findings.Fault.STATE, step, named, float(relative.max()))

    def _led(self, compute: Callable[[], Any]) -> Any:
        """Let the first process compute something, and give it to all.

        If it cannot, all learn why as an obstacle.
        """
        answer: dict[str, Any] = {}
        if self._ranks.leads:
            try:
                answer = {"value": compute()}
            except (_ObstacleError, single_process.UnfitError) as error:
                answer = {"obstacle": str(error)}
            except Exception as error:  # of the user's code, or of what a layer does in a check
                answer = {"obstacle": findings.describe_failure(error)}
        answer = json.loads(self._ranks.broadcast(json.dumps(answer).encode()))
        if "obstacle" in answer:
            raise _ObstacleError(answer["obstacle"])
        return answer["value"]
