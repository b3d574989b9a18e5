"""Steps and evaluations on ranks that each have the whole model, as traced functions."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import batch_division, nest
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.mesh import repetition
from tfparallel_trainer.objective import (
    checks,
    empty_windows,
    evaluate,
    gradient_sums,
    metric_sums,
    packed_updates,
    row_updates,
    state,
    synchrony,
    train_step,
)
from tfparallel_trainer.objective.referee import replica_referee, sampling, trials
from tfparallel_trainer.objective.replica import Replica


class MeshTrainStep(engine.Step):
    """The training step as a tf.function, traced once for each pattern of empty ranks.

    A step that gives the metrics adds them up together with the gradients. With `leaves_out`, a
    step that is not finite changes nothing but the seeds. `spec`: tf.TensorSpec [None, …] of a
    part. A data set may have batches of more than `batch_size` examples: they have a trace of their
    own.
    """

    def __init__(
        self,
        module: user.Module,
        replicas: Sequence[Replica],
        spec: Any,
        batch_size: int,
        *,
        leaves_out: bool = False,
        verify: job_file.Verify = job_file.Verify.OFF,
        targets: Any = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`say` takes what a trace shows, for the log."""
        parts = replicas[0].data.size
        super().__init__(module, replicas[0], parts, targets, leaves_out=leaves_out)
        self._replicas = replicas
        self._spec = spec
        self._batch_size = batch_size
        self._full_part = -(-batch_size // parts)
        self._say = say
        # In the sums within the forward pass, or in what it assigns.
        self._all_take_part = any(
            synchrony.layers(replica.model) or replica.updates for replica in replicas
        )
        self._is_one_program = replicas[0].is_compiled and replicas[0].data.size == 1
        """Whether XLA compiles the step as a whole."""
        self._traced: dict[tuple[tuple[bool, ...], bool, bool, bool], Any] = {}
        self._traits: list[train_step.PhaseTraits] | None = None
        self._checks: replica_referee.ReplicaReferee | None = None
        if leaves_out and checks.defines_phases(replicas[0].model):
            raise errors.UserCodeError(
                f"onNonFiniteLoss is Continue, and {type(replicas[0].model).__name__} defines "
                f"{checks.HOOK}, of which a phase may have trained before another is not finite: "
                "leave it at Stop.",
                function="compile_model",
            )
        if verify is not job_file.Verify.OFF:
            is_always = verify is job_file.Verify.ALWAYS
            self._checks = replica_referee.ReplicaReferee(replicas, self, spec, always=is_always)
            self.referee = self._checks

    @property
    def may_repeat(self) -> bool:
        """Whether one call of TensorFlow may compute several steps."""
        return True

    def prepare_executions(self) -> bool:
        """Build the loop around the step; whether the step can be in one.

        Programs of XLA that several ranks call stay outside of loops, where they were not compared.
        """
        is_compiled = self._replica.is_compiled and not self._is_one_program
        return not is_compiled and self._repetition is not None

    def trace(self, pattern: tuple[bool, ...]) -> Any:
        """Trace the step on a few examples for a check (see `trials.Trial`)."""
        if not all(pattern) and self._traits is None:
            self.trace((True,) * len(pattern))

        def run(step: tf.Tensor, examples: tf.Tensor, parts: Any) -> Any:
            remaining = iter(parts)
            outcomes = []
            for local_replica, has_part in zip(self._replicas, pattern, strict=True):
                nothing = _unsized_nothing(self._spec) if self._all_take_part else None
                rank_input = train_step.RankInput(
                    part=next(remaining) if has_part else nothing,
                    step=step,
                    requests=tf.zeros((0,), tf.float64),
                    examples=examples,
                    most_examples=sampling.MOST,
                    full_part=self._full_part,
                    traits=self._traits,
                    maybe_empty=self._all_take_part,
                    gives_metrics=True,
                    is_trial=True,
                )
                is_empty = self._all_take_part and not has_part
                with tf.device(local_replica.device), _padded_if(is_empty):
                    results = self._phases(local_replica, rank_input)
                    outcomes.append(trials.outcome(local_replica, results))
            return outcomes

        return tf.function(run, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.int64),
            tf.TensorSpec((), tf.float64),
            [self._spec for has_part in pattern if has_part],
        )

    def compute(
        self,
        step: int,
        batch: batch_division.Batch,
        requests: engine.Numbers,
        *,
        gives_metrics: bool,
    ) -> train_step.StepOutput:
        """Run the step on this process's parts of a batch."""
        rank_parts = batch.parts
        if self._all_take_part:
            rank_parts = [
                train_step.nothing(self._spec) if part is None else part for part in rank_parts
            ]
        pattern = tuple(part is not None for part in rank_parts)
        has_empty = all(pattern) and any(part is None for part in batch.parts)
        parts = [part for part in rank_parts if part is not None]
        # If the step is left out, the metrics stay as they were, so the step itself cannot return
        # them.
        gives_metrics = gives_metrics and not self.leaves_out
        fits = batch.examples <= self._batch_size
        vector, values = self._function(pattern, gives_metrics, fits=fits, has_empty=has_empty)(
            tf.constant(step, tf.int64),
            tf.constant(np.append(requests, batch.examples)),
            nest.convert(tf.convert_to_tensor, parts),
        )
        metrics = metric_sums.numbers(values) if gives_metrics else None
        return train_step.StepOutput.unpack(vector.numpy(), len(self._replica.terms), metrics)

    def count_together(
        self, batches: Sequence[batch_division.Batch], requests: frozenset[engine.StepRequest]
    ) -> int:
        """Batches of one shape, up to the next step that is compared with one process."""
        is_larger = batches[0].examples > self._batch_size
        if len(batches) == 1 or is_larger or engine.StepRequest.METRICS in requests:
            return 1
        most = len(batches)
        if self._checks is not None:
            has_changed = engine.StepRequest.CHANGED in requests
            most = min(most, self._checks.steps_to_check(batches[0].examples, changed=has_changed))
        if batches[0].examples < self._replica.data.size:  # a rank has none
            return 1
        count = repetition.count_alike(batches[:most])
        return count if count > 1 and self._repetition is not None else 1

    def compute_together(
        self, step: int, batches: Sequence[batch_division.Batch], requests: engine.Numbers
    ) -> Sequence[train_step.StepOutput]:
        """Run the steps in one call."""
        examples = np.full((len(batches), 1), float(batches[0].examples))
        rows = self._repetition(
            tf.constant(step, tf.int64),
            tf.constant(np.concatenate([requests, examples], 1)),
            repetition.stack_parts([batch.parts for batch in batches]),
        ).numpy()
        return [train_step.StepOutput.unpack(row, len(self._replica.terms)) for row in rows]

    @functools.cached_property
    def _repetition(self) -> Any:
        """The step on several batches, of which each rank has a part; None if it cannot be."""
        function = self._function((True,) * len(self._replicas), False)
        return repetition.build_loop(
            function, engine.REQUESTS + 1, [self._spec] * len(self._replicas)
        )

    def _function(
        self,
        pattern: tuple[bool, ...],
        gives_metrics: bool,
        *,
        fits: bool = True,
        has_empty: bool = False,
    ) -> Any:
        if not all(pattern) and self._traits is None:
            # Only a rank that has examples can find the kinds of its model's gradients.
            self._function((True,) * len(pattern), gives_metrics, fits=fits)
        key = pattern, gives_metrics, fits, has_empty
        if key not in self._traced:
            is_first = not self._traced
            self._traced[key] = self._trace(*key)
            if is_first and self._say is not None:
                self._describe_tables(self._say)
        return self._traced[key]

    def _trace(
        self, pattern: tuple[bool, ...], gives_metrics: bool, fits: bool, has_empty: bool
    ) -> Any:
        def run(step: tf.Tensor, numbers: tf.Tensor, parts: Any) -> Any:
            remaining, first = iter(parts), self._replicas[0]
            requests, examples = numbers[:-1], numbers[-1]
            outputs = []
            for local_replica, has_part in zip(self._replicas, pattern, strict=True):
                rank_input = train_step.RankInput(
                    part=next(remaining) if has_part else None,
                    step=step,
                    requests=requests if local_replica is first else tf.zeros_like(requests),
                    examples=examples,
                    most_examples=self._full_part if fits else None,
                    full_part=self._full_part,
                    traits=self._traits,
                    maybe_empty=self._all_take_part,
                    gives_metrics=gives_metrics,
                )
                with tf.device(local_replica.device), _padded_if(has_empty):
                    outputs.append(self._rank_step(local_replica, rank_input))
            packed = outputs[0].pack()
            repetition.describe_variables()
            return packed, outputs[0].metrics

        with user.guard(self.module.path, "tracing a training step raised"):
            function = tf.function(
                run,
                autograph=False,
                jit_compile=self._is_one_program or None,
                experimental_attributes=repetition.ATTRIBUTES,
            )
            return function.get_concrete_function(
                tf.TensorSpec((), tf.int64),
                tf.TensorSpec((engine.REQUESTS + 1,), tf.float64),
                [self._spec for has_part in pattern if has_part],
            )

    def _describe_tables(self, say: Callable[[str], None]) -> None:
        phases = zip(self._replica.computations, self._traits or (), strict=True)
        for phase, traits in phases:
            sentence = gradient_sums.describe_tables(traits.kinds, phase.variables)
            if sentence:
                say(f"{sentence}: that is fewer bytes than the rows of a batch")

    def _rank_step(
        self, replica: Replica, rank_input: train_step.RankInput
    ) -> train_step.StepOutput:
        results = self._phases(replica, rank_input)
        if not rank_input.gives_metrics:
            return train_step.combine_phases(results)
        values = metric_sums.tensors(replica, results[-1].metric_states)
        return train_step.combine_phases(results, values)

    def _phases(
        self, replica: Replica, rank_input: train_step.RankInput
    ) -> list[train_step.ReducedPhase]:
        """Compute and apply each phase on a rank; returns their results."""
        before = state.Memory(replica) if self.leaves_out else None
        results = []
        for phase, shared in train_step.compute_phases(replica, rank_input):
            results.append(shared)
            if before is None and self._is_one_program:  # XLA joins operations better
                optimizer = row_updates.adapt(phase.optimizer, for_xla=True)
                optimizer.apply(shared.gradients, phase.variables)
            elif before is None:
                packed_updates.apply(phase.optimizer, shared.gradients, phase.variables)
            else:
                before.apply_if(shared.finite, shared.gradients, phase.variables)
        self._traits = [shared.traits for shared in results]
        return results


def _padded_if(has_empty: bool) -> contextlib.AbstractContextManager[None]:
    """The context of a forward pass, of which the examples may be none."""
    return empty_windows.padded() if has_empty else contextlib.nullcontext()


def _unsized_nothing(spec: Any) -> Any:
    """A part without examples, traced as if it had some."""
    return nest.packed(
        spec,
        [
            tf.raw_ops.PlaceholderWithDefault(input=empty, shape=leaf.shape)
            for empty, leaf in zip(
                nest.leaves(train_step.nothing(spec)), nest.leaves(spec), strict=True
            )
        ],
    )


class MeshEvaluator(evaluate.Evaluator):
    """Each rank goes through its part of the examples."""

    def __init__(
        self,
        module: user.Module,
        replicas: Sequence[Replica],
        spec: Any,
        *,
        averaged: bool = True,
    ) -> None:
        """If `averaged`, evaluate the averages of the weights that the optimizer keeps."""
        super().__init__(
            replicas,
            state.sharing_statistics(replicas),
            functools.partial(evaluate.averaged, replicas if averaged else ()),
        )
        self._module = module
        self._spec = spec
        self._traced: dict[int, Any] = {}
        self._report = evaluate.MetricReduction(replicas)

    def sums(self, batch: batch_division.Batch) -> Any:
        """The sums over the parts of this process."""
        sums = np.zeros((2, len(self._replicas[0].terms)))
        for index, part in enumerate(batch.parts):
            if part is not None:
                tensors = nest.convert(tf.convert_to_tensor, part)
                sums += self._function(index)(tensors).numpy()
        return sums

    def results(self, sums: Any) -> dict[str, float]:
        """The results over all processes."""
        values, totals = self._report(sums)
        return {**evaluate.losses(self._replicas[0], totals), **values}

    def _function(self, index: int) -> Any:
        if index not in self._traced:
            replica = self._replicas[index]

            def run(part: Any) -> tf.Tensor:
                with tf.device(replica.device):
                    return evaluate.sums_of(replica, part)

            with user.guard(self._module.path, "tracing the evaluation raised"):
                self._traced[index] = tf.function(run, autograph=False).get_concrete_function(
                    self._spec
                )
        return self._traced[index]
