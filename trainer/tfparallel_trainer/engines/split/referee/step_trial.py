"""The step of all ranks on a few examples of a batch, after which their state is as before."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.checkpoint import shard
from tfparallel_trainer.data import batch_division, order
from tfparallel_trainer.engines.split.execution import pipeline_steps, ranks, stage_worker
from tfparallel_trainer.engines.split.model import recording
from tfparallel_trainer.engines.split.pipeline import partition
from tfparallel_trainer.engines.split.referee.gathering import StateGathering
from tfparallel_trainer.objective import evaluate, synchrony
from tfparallel_trainer.objective.referee import (
    comparison,
    draws,
    observations,
    reference_model,
    sampling,
    snapshots,
)

_EXAMPLES = 8
"""How many examples a check has at least, if the batch has as many."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrialSample:
    """The examples of a check."""

    step: int
    whole: Any
    """(x, y, sample_weight) as tensors [n, …]."""
    shares: stage_worker.Shares


class Trials:
    """Runs the ranks of this process, together with all others."""

    def __init__(
        self,
        local_ranks: ranks.Ranks,
        step: pipeline_steps.PipelineTrainStep,
        state: shard.State,
        spec: Any,
    ) -> None:
        """`spec`: tf.TensorSpec [None, …] of a part."""
        self._ranks = local_ranks
        self._step = step
        self._state = state
        self._spec = spec
        self.gathering = StateGathering(local_ranks, state)
        self._traced: dict[stage_worker.Shares, Any] = {}
        layers = [
            layer
            for node in local_ranks.partition.model.nodes
            if hasattr(node.calls, "_flatten_layers")
            for layer in node.calls._flatten_layers()
        ]
        self._following = [layer for layer in layers if observations.follows(layer)]
        """Layers that normalise by what each rank has in a microbatch."""
        self._normalises = bool(self._following or synchrony.among(layers))
        """Whether layers normalise by a microbatch, that of one rank or those of all."""
        ids = {
            id(variable) for layer in self._following for variable in layer.non_trainable_weights
        }
        variables = local_ranks.partition.model.variables
        self.following = frozenset(
            key for key, variable in variables.items() if id(variable) in ids
        )
        """Keys of the statistics that follow each place's own examples."""
        types = (tf.as_dtype(variable.dtype).name for variable in variables.values())
        self.limit = max(comparison.LIMITS.get(kind_name, 0.0) for kind_name in types)
        """Within which copies of a variable are the same."""
        self._divided = self._divide(local_ranks.partition)

    @property
    def obstacle(self) -> str:
        """Why the model cannot be compared with one process; empty: it can."""
        for stage in self._ranks.partition.stages:
            if any(key.startswith(recording.SEED_PREFIX) for key, _ in stage.borrowed):
                return "two stages call one layer with dropout, each with random numbers of its own"
        return ""

    @property
    def omitted(self) -> list[str]:
        """What a trial leaves out of the training step."""
        before = self._ranks.partition
        omitted = []
        if self._normalises and before.microbatches > 1:
            omitted.append("microbatches, each of which BatchNormalization normalizes by itself")
        if self._following and before.mesh.data > 1:
            omitted.append("BatchNormalization of each replica's own examples")
        return omitted

    def sample(self, step: int, batch: batch_division.Batch) -> TrialSample:
        """Choose some examples of a batch; all processes call it."""
        examples = self._count(batch.examples)
        shares = self._ranks.shares(examples)
        parts = {}
        for rank, part in zip(self._ranks.local, batch.parts, strict=True):
            if part is not None and shares[rank.data] and rank.data not in parts:
                parts[rank.data] = sampling.choose(part, shares[rank.data])
        return TrialSample(step, self.gathering.examples(parts, shares, self._spec), shares)

    def prepare(self, shares: stage_worker.Shares) -> None:
        """Trace the step for a division, once."""
        if shares not in self._traced:
            counts = self._divided.counts(shares)
            sizes = {
                len(rows)
                for share, count in zip(shares, counts, strict=True)
                for rows in (order.split(share, count) if share else ())
            }
            with draws.alike(frozenset(sizes)), self._synchronised():
                self._traced[shares] = self._step.trial(self._divided, shares)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore all that training has, after the body."""
        handles = [entry.variable.value.handle for _, entry in self._state.each()]
        for rank in self._ranks.local:
            handles += [
                metric_variable.value.handle
                for metric_variable in rank.head.model.metrics_variables
            ]
        for function in self._traced.values():
            handles += snapshots.handles_of(function)
        before = snapshots.VariableSnapshot(handles)
        try:
            yield
        finally:
            before.restore()

    def assign(self, wholes: reference_model.Wholes, keys: Sequence[str]) -> None:
        """Give the ranks their parts of some variables."""
        for key, entry in self._state.each():
            if key in keys:
                kind = tf.as_dtype(entry.variable.dtype).as_numpy_dtype
                entry.variable.assign(wholes[key][entry.box.slices].astype(kind))

    def run(
        self, sample: TrialSample, before: reference_model.Wholes
    ) -> reference_model.StepOutcome:
        """Make the step from the state as it is, which `before` has; changes it."""
        heads = [rank.head for rank in self._ranks.local]
        evaluate.reset_metrics(heads)
        rows = np.cumsum([0, *sample.shares])
        places = {rank.data for rank in self._ranks.local if sample.shares[rank.data]}
        parts = {
            data_index: batch_division.rows(
                sample.whole, range(rows[data_index], rows[data_index + 1])
            )
            for data_index in sorted(places)
        }
        loss, gradients = self._traced[sample.shares](tf.constant(sample.step, tf.int64), parts)
        total = self.gathering.gradients(gradients)
        after = self.gathering.state()
        return reference_model.StepOutcome(
            loss=float(loss),
            gradients=total,
            changes={key: change - before[key] for key, change in after.items()},
            metrics=self._ranks.metrics(),
        )

    def _count(self, examples: int) -> int:
        """How many examples a check takes from a batch; it divides evenly if the batch does."""
        divided = self._divided
        parts = divided.mesh.data * divided.microbatches
        number = max(2 * parts, -(-_EXAMPLES // parts) * parts)
        return min(number + (1 if examples % parts else 0), examples)

    def _divide(self, divided: partition.Partition) -> partition.Partition:
        """The partition of a trial: its random numbers and statistics are those of one process."""
        if self._normalises:
            synchronises = bool(self._following) and divided.mesh.data > 1
            divided = dataclasses.replace(
                divided, microbatches=1, adds_up=divided.adds_up or synchronises
            )
        return dataclasses.replace(divided, same_dropout=True)

    @contextlib.contextmanager
    def _synchronised(self) -> Iterator[None]:
        """Let layers that normalise by each place's examples do so by those of all."""
        layers = self._following if self._ranks.partition.mesh.data > 1 else []
        for layer in layers:
            layer.synchronized = True
        try:
            yield
        finally:
            for layer in layers:
                layer.synchronized = False
