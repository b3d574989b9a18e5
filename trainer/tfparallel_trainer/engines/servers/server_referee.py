"""Compares steps of workers with a model of one process, in the memory of the chief's host.

A checked step runs alone: all earlier steps are done, and later ones wait. So the comparison uses
the weights that the worker has read, and everything that it has written to the servers.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, random_state, user
from tfparallel_trainer.checkpoint import keys
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import verification
from tfparallel_trainer.data import batch_division, nest
from tfparallel_trainer.objective import replica, tracing
from tfparallel_trainer.objective.referee import (
    findings,
    judgement,
    reference_model,
    replica_referee,
)


class ServerReferee:
    """Checks steps of workers."""

    def __init__(
        self,
        served: replica.Replica,
        single: replica.Replica | str,
        spec: Any,
        workers: int,
        *,
        always: bool,
    ) -> None:
        """Take the model whose variables are on the servers, and the model of one process.

        If the latter does not exist, `single` says why.

        `spec`: tf.TensorSpec [None, …] of a batch.
        """
        self._served = keys.for_training(served.model, served.optimizer)
        self._closures = served.closures
        self._outside: list[tuple[tracing.Kind, tf.Tensor]] = []
        """The variables outside the model, as `state` has seen them."""
        self._spec = spec
        self._schedule = replica_referee.CheckSchedule(1, always=always)
        self.is_always_due = always
        self._omitted = ["what workers do at the same time"] if workers > 1 else []
        self._single = single
        self._obstacle = single if isinstance(single, str) else ""
        self._judge: judgement.Judge | None = None

    def is_due(self, examples: int, *, changed: bool = False) -> bool:
        """Whether a step on a batch of so many examples is to be checked.

        `changed`: observers have changed variables since the step before.
        """
        return self._schedule.is_due(examples, changed=changed)

    def omission(self, step: int) -> Callable[[], verification.Check] | None:
        """Return what says why a step, by its number from 0, cannot be compared, if it cannot."""
        if not self._obstacle:
            return None
        return functools.partial(verification.Check, step + 1, {}, [self._obstacle])

    def state(self) -> reference_model.Wholes:
        """The variables on the servers. No step may be pending."""
        self._outside = tracing.read(self._closures)
        return {key: reference_model.value_of(variable) for key, variable in self._served.items()}

    def __call__(
        self,
        step: int,
        batch: batch_division.Batch,
        before: reference_model.Wholes,
        loss: float,
        metrics: dict[str, float],
    ) -> verification.Check:
        """Compare a step, by its number from 0, that ran alone from a state.

        Raises:
            VerificationError: its numbers differ from those of one process.
        """
        changes = {key: variable - before[key] for key, variable in self.state().items()}
        of_worker = reference_model.StepOutcome(loss, {}, changes, metrics)
        examples = nest.convert(tf.convert_to_tensor, batch.parts[0])
        try:
            return self._compare(step, examples, before, of_worker)
        except errors.VerificationError:
            raise
        except Exception as error:  # of the user's code, or of what a layer does in a check
            self._obstacle = findings.describe_failure(error)
            return verification.Check(step + 1, {}, [self._obstacle])

    def _compare(
        self,
        step: int,
        examples: Any,
        before: reference_model.Wholes,
        of_worker: reference_model.StepOutcome,
    ) -> verification.Check:
        judge = self._judge = self._judge or self._prepare()
        judge.follow(self._outside)
        compared = judge.compare(step, examples, before, of_worker, measures=False)
        if compared.exceeds.any():
            compared = judge.compare(step, examples, before, of_worker, measures=True)
        if compared.is_random:
            self._obstacle = findings.RANDOM
            return verification.Check(step + 1, {}, [self._obstacle])
        verdict = judge.verdict([compared], step + 1, examples, before, divides_batch=False)
        return verification.Check(step + 1, verdict, self._omitted)

    def _prepare(self) -> judgement.Judge:
        single = self._single
        if isinstance(single, str):  # no step is compared then
            raise TypeError(single)
        variables = keys.for_training(single.model, single.optimizer)
        model = reference_model.ReferenceModel(single, variables, self._spec, takes_gradients=False)
        return judgement.Judge(model)


def build(
    module: user.Module, mesh: shape.MeshShape, seed: int, served: Any, sample: Any
) -> replica.Replica | str:
    """Build the model of one process in the chief's memory; module and generators stay as they are.

    If that is impossible, return the reason, such as that `served`, the model on the servers, is
    too large.
    """
    most = reference_model.most_weights()
    if served.count_params() > most:
        return f"a model of more than {most:,} weights, which the chief does not hold as a whole"
    replica.forget_names()
    try:
        with module.restored(), random_state.seeded(seed):  # data functions may draw later
            return replica.build(module, mesh, 0, "/device:CPU:0", seed, sample)
    except Exception as error:  # of the user's code, as for another call of build_model
        return findings.describe_failure(error)
