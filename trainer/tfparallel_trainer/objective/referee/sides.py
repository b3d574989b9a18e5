"""Runs both sides of a check on the ranks of this process, and restores the state."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives, devices
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.objective import eager_options, evaluate, replica, train_step
from tfparallel_trainer.objective.referee import (
    draws,
    keras_step,
    observations,
    snapshots,
    trials,
)

_COPIES = 4
"""How often a check may have the state of its replicas in memory. It is there as it was and as it
is written again, and both sides have gradients."""


class IncomparableError(Exception):
    """A step cannot be compared; its text says why, as a sentence without a period."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The examples of a check."""

    step: int
    whole: Any
    """(x, y, sample_weight) of all ranks, in their order."""
    counts: Sequence[int]
    """How many of them each rank has."""


class Sides:
    """The ranks' step, and that of one process, of each replica of this process."""

    def __init__(self, replicas: Sequence[replica.Replica], trial: trials.Trial, spec: Any) -> None:
        self._replicas = replicas
        self._trial = trial
        self._spec = spec
        self._traced: dict[tuple[bool, ...], Any] = {}
        self._references: list[Any] = []
        self.variables: list[observations.Variables] = []
        """Those that are compared, of each replica."""
        self.metrics: list[str] = []

    def prepare(self, counts: Sequence[int]) -> None:
        """Trace what is not traced for these numbers of examples.

        Raises:
            IncomparableError: the two sides cannot be compared.
        """
        pattern = self._pattern(counts)
        if pattern in self._traced:
            return
        self._require_memory()
        with draws.alike(), self._synchronized():
            function = self._trial.trace(pattern)
        if not self._references:
            outcomes = function.structured_outputs
            for rank_replica, (_, gradients, _) in zip(self._replicas, outcomes, strict=True):
                self._references.append(keras_step.trace(rank_replica, self._spec, gradients))
            self.variables = [
                observations.variables_of(rank_replica, traced)
                for rank_replica, traced in zip(self._replicas, self._references, strict=True)
            ]
            self.metrics = sorted(outcomes[0][2])
        self._traced[pattern] = function

    def run_ranks(self, sample: Sample) -> tuple[list[Any], list[Any]]:
        """Run the ranks' step; gives what each replica gave (see `observe`), and its gradients."""
        rows = np.cumsum([0, *sample.counts])
        parts = [
            batch_division.rows(
                sample.whole,
                range(rows[rank_replica.data.index], rows[rank_replica.data.index + 1]),
            )
            for rank_replica in self._replicas
        ]
        with self._restored() as before:
            function = self._traced[self._pattern(sample.counts)]
            with eager_options.unoptimized():
                outcomes = function(
                    _number(sample),
                    tf.constant(sum(sample.counts), tf.float64),
                    [part for part in parts if part is not None],
                )
            observed = [
                observations.observe(outcome, variables.changing, before)
                for outcome, variables in zip(outcomes, self.variables, strict=True)
            ]
        return observed, [gradients for _, gradients, _ in outcomes]

    def run_alone(self, sample: Sample, gradients: Sequence[Any]) -> list[Any]:
        """Run the step of one process on each replica, which applies these gradients."""
        observed = []
        with self._restored() as before:
            for traced, variables, applied in zip(
                self._references, self.variables, gradients, strict=True
            ):
                with eager_options.unoptimized():
                    outcome = traced(_number(sample), sample.whole, applied)
                observed.append(observations.observe(outcome, variables.changing, before))
        return observed

    @contextlib.contextmanager
    def moved(self, seed: int, size: float) -> Iterator[None]:
        """Move each trained weight by up to a share of its value, on all ranks alike."""
        with self._restored() as before:
            for variables in self.variables:
                random = np.random.default_rng(seed)
                for variable in variables.trained:
                    factors = 1 + size * random.uniform(-1, 1, tuple(variable.shape))
                    before.move(variable.value.handle, factors)
            yield

    def undivided_loss(self, sample: Sample) -> float:
        """The loss of all examples as a rank computes it that shares them with no other one."""
        first = self._replicas[0]
        alone = dataclasses.replace(first, data=collectives.Communicator(0, 1, 0, first.device))

        def run(step: tf.Tensor, whole: Any) -> tf.Tensor:
            with tf.device(first.device), draws.alike():
                return train_step.compute_local_gradients(alone, whole, step).loss

        with self._restored():
            return float(tf.function(run, autograph=False)(_number(sample), sample.whole))

    def loss(self, sample: Sample) -> float:
        """The loss of all examples as Keras computes it."""
        _, gradients = self.run_ranks(sample)
        with self._restored(), eager_options.unoptimized():
            loss, *_ = self._references[0](_number(sample), sample.whole, gradients[0])
        return float(loss)

    def _require_memory(self) -> None:
        """Raise an IncomparableError if the copies of a check may not fit in the memory."""
        handles = [
            variable.value.handle
            for rank_replica in self._replicas
            for variable in rank_replica.state()
        ]
        needed, available = _COPIES * snapshots.size_of(handles), devices.free_bytes()
        if needed > available:
            raise IncomparableError(
                f"a check may need {needed / 2**20:,.0f} MiB, and {available / 2**20:,.0f} MiB of "
                "memory are available"
            )

    @contextlib.contextmanager
    def _restored(self) -> Iterator[snapshots.VariableSnapshot]:
        """Restore all variables after the body, which begins with no examples in the metrics."""
        handles = [
            variable.handle for variables in self.variables for variable in variables.changing
        ]
        for function in (*self._traced.values(), *self._references):
            handles += snapshots.handles_of(function)
        for rank_replica in self._replicas:
            handles += [metric.value.handle for metric in rank_replica.model.metrics_variables]
        before = snapshots.VariableSnapshot(handles)
        evaluate.reset_metrics(self._replicas)
        try:
            yield before
        finally:
            before.restore()

    @contextlib.contextmanager
    def _synchronized(self) -> Iterator[None]:
        """Let layers that normalise by each rank's own examples do so by those of all."""
        several = self._replicas[0].data.size > 1
        layers = [
            layer
            for rank_replica in self._replicas
            if several
            for layer in observations.following_layers(rank_replica.model)
        ]
        for layer in layers:
            layer.synchronized = True
        try:
            yield
        except errors.UserCodeError as error:
            if not layers:
                raise
            raise IncomparableError(
                "BatchNormalization of masked inputs follows each replica's own examples"
            ) from error
        finally:
            for layer in layers:
                layer.synchronized = False

    def _pattern(self, counts: Sequence[int]) -> tuple[bool, ...]:
        return tuple(counts[rank_replica.data.index] > 0 for rank_replica in self._replicas)


def _number(sample: Sample) -> tf.Tensor:
    return tf.constant(sample.step, tf.int64)
