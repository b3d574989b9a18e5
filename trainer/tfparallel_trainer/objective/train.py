"""One optimizer step on all ranks: forward, sum, backward, sum, update.

The loss is L = Σ w N / D + R over its terms. N and D are the sums of their numerators and
denominators over ranks, w their weights and R the regularisation. Its gradient is the sum over
ranks of Σ (w / D) dn, plus dR once; so D is summed first and the gradients after the backward pass.
"""

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import feed, fingerprints, nest
from tfparallel_trainer.objective import (
    checks,
    finite,
    gradients,
    independence,
    loss,
    metrics,
    phases,
    replica,
    synchrony,
)


class Flag(enum.IntEnum):
    """What any process may ask for in a step; all learn of it in the same step."""

    STOP = 0
    """A process was asked to end."""
    REPORT = 1
    """The chief wants to report."""
    SAVE = 2
    """By the chief's clock it is time for a checkpoint."""
    METRICS = 3
    """Observers take the metrics of each step; all processes ask for them, or none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gives on every process alike."""

    loss: float
    terms: dict[str, float]
    """The loss of each output; empty when there is only one."""
    flags: frozenset[Flag]
    finite: bool
    """Whether the loss and, without loss scaling, all gradients are finite numbers."""
    metrics: dict[str, float] | None = None
    """Over all ranks; None where the step adds none up."""


class TrainStep:
    """The step as a traced function; one for each pattern of ranks with and without examples.

    A step that gives the metrics adds them up together with the gradients.

    Args:
        module: the user's module, for the messages.
        replicas: those of this process.
        spec: structure of a part of a batch, as tf.TensorSpec [None, …].
        leaves_out: whether a step that is not finite changes nothing but the seeds.
    """

    def __init__(
        self,
        module: user.Module,
        replicas: Sequence[replica.Replica],
        spec: Any,
        *,
        leaves_out: bool = False,
    ) -> None:
        self._module = module
        self._replicas = replicas
        self._spec = spec
        self._leaves_out = leaves_out
        self._all_take_part = any(synchrony.layers(replica.model) for replica in replicas)
        self._traced: dict[tuple[tuple[bool, ...], bool], Any] = {}
        self._kinds: list[Kinds] | None = None
        if leaves_out and checks.defines_phases(replicas[0].model):
            raise errors.UserCodeError(
                f"onNonFiniteLoss is Continue, and {type(replicas[0].model).__name__} defines "
                f"{checks.HOOK}, of which a phase may have trained before another is not finite: "
                "leave it at Stop."
            )

    def __call__(self, step: int, batch: feed.Batch, asked: frozenset[Flag]) -> Outcome:
        """Make step number `step` (from 0) on this process's parts of a batch."""
        rank_parts = batch.parts
        if self._all_take_part:  # in the sums within the forward pass
            rank_parts = [nothing(self._spec) if part is None else part for part in rank_parts]
        pattern = tuple(part is not None for part in rank_parts)
        flags = [float(flag in asked) for flag in Flag]
        requests = [*flags, *fingerprints.summands(batch.fingerprint)]
        parts = [part for part in rank_parts if part is not None]
        if not self._traced and parts and self._replicas[0].data.size > 1:
            with user.guard(self._module.path, "computing the loss of some examples raised"):
                independence.check(self._replicas[0], parts[0])
        # A step that is left out leaves the metrics as they were, so they are not known within it.
        gives_metrics = Flag.METRICS in asked and not self._leaves_out
        *tensors, values = self._function(pattern, gives_metrics)(
            tf.constant(step, tf.int64),
            tf.constant(requests, tf.float64),
            nest.convert(tf.convert_to_tensor, parts),
        )
        outcome = outcome_of(self._replicas[0], step, [tensor.numpy() for tensor in tensors])
        if not gives_metrics:
            return outcome
        return dataclasses.replace(outcome, metrics=metrics.numbers(values))

    def _function(self, pattern: tuple[bool, ...], gives_metrics: bool) -> Any:
        if not all(pattern) and self._kinds is None:
            # Only a rank with examples knows which kinds of gradients its model has.
            self._function((True,) * len(pattern), gives_metrics)
        key = pattern, gives_metrics
        if key not in self._traced:
            self._traced[key] = self._trace(*key)
        return self._traced[key]

    def _trace(self, pattern: tuple[bool, ...], gives_metrics: bool) -> Any:
        def run(step: tf.Tensor, flags: tf.Tensor, parts: Any) -> Any:
            waiting = iter(parts)
            outcomes = []
            for local_replica, has_part in zip(self._replicas, pattern, strict=True):
                asked = flags if local_replica is self._replicas[0] else tf.zeros_like(flags)
                with tf.device(local_replica.device):
                    part = next(waiting) if has_part else None
                    outcomes.append(
                        self._rank_step(local_replica, part, step, asked, gives_metrics)
                    )
            return outcomes[0]

        with user.guard(self._module.path, "tracing a training step raised"):
            return tf.function(run, autograph=False).get_concrete_function(
                tf.TensorSpec((), tf.int64),
                tf.TensorSpec((len(Flag) + fingerprints.SUMMANDS,), tf.float64),
                [self._spec for has_part in pattern if has_part],
            )

    def _rank_step(
        self,
        replica: replica.Replica,
        part: Any,
        step: tf.Tensor,
        flags: tf.Tensor,
        gives_metrics: bool,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        before = finite.Memory(replica) if self._leaves_out else None
        results = []
        for phase, shared in phases_of_rank(
            replica,
            part,
            step,
            flags,
            kinds=self._kinds,
            maybe_empty=self._all_take_part,
            gives_metrics=gives_metrics,
        ):
            results.append(shared)
            if before is None:
                phase.optimizer.apply(shared.gradients, phase.variables)
            else:
                before.apply_if(shared.finite, shared.gradients, phase.variables)
        self._kinds = [shared.kinds for shared in results]
        values = metrics.tensors(replica, results[-1].metric_states) if gives_metrics else {}
        return *joined(results), values


def outcome_of(replica: replica.Replica, step: int, values: Sequence[Any]) -> Outcome:
    """What a step gave.

    Args:
        replica: any replica.
        step: number of the step.
        values: the loss, that of each output, the sums of flags and fingerprints, and whether all
            are finite, as arrays.

    Raises:
        UserCodeError: processes were given different examples.
    """
    total, terms, flag_sums, is_finite = values
    if not fingerprints.alike(flag_sums[len(Flag) :]):
        raise errors.UserCodeError(
            f"Some replicas get other examples than others, which shows in step {step + 1}: give "
            "the same in the same order everywhere. Sort lists of files, and let what is random "
            "follow from a seed: in training_data from context.seed and context.epoch."
        ).on_every_process()
    return Outcome(
        loss=float(total),
        terms=replica.by_output(terms),
        flags=frozenset(flag for flag in Flag if flag_sums[flag] > 0),
        finite=bool(is_finite),
    )


Kinds = list[gradients.Kind]


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """What a phase of a batch that is divided over ranks leads to, the same on all of them.

    No weight that it trains has changed.
    """

    gradients: list[Any]
    """Of the variables that the phase trains, over all ranks."""
    kinds: Kinds
    """Of the gradients of one rank."""
    loss: tf.Tensor
    terms: tf.Tensor
    """The loss of each output."""
    flags: tf.Tensor
    """Of all phases, those of the first one."""
    finite: tf.Tensor
    metric_states: list[tf.Tensor]
    """Of the model's metrics_variables, over all ranks; none where they are not asked for."""


def phases_of_rank(
    replica: replica.Replica,
    part: Any,
    step: tf.Tensor,
    flags: tf.Tensor,
    *,
    kinds: Sequence[Kinds] | None = None,
    maybe_empty: bool = False,
    gives_metrics: bool = False,
) -> Iterator[tuple[phases.Computation, Shared]]:
    """Compute a batch together with the other ranks, one phase after the other.

    The caller applies the gradients of a phase before it asks for the next one.

    Args:
        replica: this rank's replica.
        part: its examples; None when it has none.
        step: number of the step.
        flags: what this rank asks for, float64 in the order of `Flag`, and further numbers.
        kinds: of the gradients of each phase, which a rank without examples cannot know.
        maybe_empty: whether the part may hold no examples, not being None.
        gives_metrics: whether the last phase adds the metrics' states up too.
    """
    replica.data.begin(collectives.Program.TRAIN)
    last = len(replica.computations) - 1
    for place, phase in enumerate(replica.computations):
        yield (
            phase,
            _phase_of_rank(
                replica,
                phase,
                part,
                step,
                flags[:0] if place else flags,
                known=None if kinds is None else kinds[place],
                maybe_empty=maybe_empty,
                gives_metrics=gives_metrics and place == last,
            ),
        )


def joined(results: Sequence[Shared]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The loss, its terms, the flags, and whether all are finite, of all phases of a step."""
    return (
        tf.add_n([shared.loss for shared in results]),
        tf.concat([shared.terms for shared in results], 0),
        results[0].flags,
        tf.reduce_all(tf.stack([shared.finite for shared in results])),
    )


def _phase_of_rank(
    replica: replica.Replica,
    phase: phases.Computation,
    part: Any,
    step: tf.Tensor,
    flags: tf.Tensor,
    *,
    known: Kinds | None,
    maybe_empty: bool,
    gives_metrics: bool,
) -> Shared:
    variables = phase.variables
    with tf.GradientTape() as tape:
        fractions = [] if part is None else _forward(replica, phase, part, step)
        penalty = phase.penalty()
    sums = replica.data.sum(tf.concat([_denominators(phase, fractions), flags], 0))
    scales = _scales(phase, sums[: len(phase.terms)])
    if part is None:
        of_each = list(known or ())
        computed = gradients.zeros(of_each, variables)
    else:
        seed = replica.data.of_first(tf.ones((), penalty.dtype))  # once, not for each rank
        computed = _backward(phase, tape, fractions, (penalty, seed), scales)
        of_each = [gradients.kind(one) for one in computed]
        if maybe_empty:
            empty = tf.equal(tf.shape(nest.leaves(part)[0])[0], 0)
            computed = gradients.nothing_if(empty, computed, variables)
    states = metrics.contributions(replica) if gives_metrics else []
    numerators = _numerators(phase, fractions)
    sums_of_all = gradients.add_up(
        replica.data, computed, of_each, variables, [numerators, *states]
    )
    totals, (values, *states) = sums_of_all[: len(variables)], sums_of_all[len(variables) :]
    values = values * scales
    total = tf.reduce_sum(values) + tf.cast(penalty, tf.float64)
    return Shared(
        gradients=totals,
        kinds=of_each,
        loss=total,
        terms=values,
        flags=sums[len(phase.terms) :],
        finite=finite.of_step(phase.optimizer, total, totals),
        metric_states=states,
    )


def nothing(spec: Any) -> Any:
    """A part of no examples."""
    return nest.convert(
        lambda leaf: tf.zeros((0, *(size or 1 for size in leaf.shape[1:])), leaf.dtype), spec
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """What a batch that is shared with no other rank leads to; no variable has changed."""

    gradients: list[Any]
    """Of the trainable variables."""
    loss: tf.Tensor
    terms: tf.Tensor
    """The loss of each output."""
    isolated: metrics.Isolated


def of_batch(replica: replica.Replica, part: Any, step: tf.Tensor) -> Computed:
    """Compute what a batch leads to when it is shared with no other rank."""
    (phase,) = replica.computations
    with tf.GradientTape() as tape:
        isolated = metrics.isolate(
            replica, lambda: _forward(replica, phase, part, step, alone=True)
        )
        penalty = phase.penalty()
    fractions = isolated.result
    scales = _scales(phase, _denominators(phase, fractions))
    values = _numerators(phase, fractions) * scales
    once = penalty, tf.ones((), penalty.dtype)
    return Computed(
        gradients=_backward(phase, tape, fractions, once, scales),
        loss=tf.reduce_sum(values) + tf.cast(penalty, tf.float64),
        terms=values,
        isolated=isolated,
    )


def _forward(
    replica: replica.Replica,
    phase: phases.Computation,
    part: Any,
    step: tf.Tensor,
    *,
    alone: bool = False,
) -> list[loss.Fraction]:
    goes_on = phase is not replica.computations[0]
    with replica.drawing(step, alone=alone, goes_on=goes_on):
        return phase.fractions(part, replica.data, training=True)


def _denominators(phase: phases.Computation, fractions: list[loss.Fraction]) -> tf.Tensor:
    if not fractions:
        return tf.zeros((len(phase.terms),), tf.float64)
    return tf.stack([fraction.denominator for fraction in fractions])


def _numerators(phase: phases.Computation, fractions: list[loss.Fraction]) -> tf.Tensor:
    if not fractions:
        return tf.zeros((len(phase.terms),), tf.float64)
    return tf.stack([tf.cast(fraction.numerator, tf.float64) for fraction in fractions])


def _scales(phase: phases.Computation, denominators: tf.Tensor) -> tf.Tensor:
    """What each numerator is multiplied by: its weight, over the sum of the denominators."""
    weights = tf.constant([term.weight for term in phase.terms], tf.float64)
    divided = tf.constant([term.divided for term in phase.terms])
    return tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)


def _backward(
    phase: phases.Computation,
    tape: tf.GradientTape,
    fractions: list[loss.Fraction],
    penalty: tuple[tf.Tensor, tf.Tensor],
    scales: tf.Tensor,
) -> list[Any]:
    """The gradients of the fractions and of a penalty, which has its scale with it."""
    # A loss-scaling optimizer (mixed precision) multiplies here and divides again when it applies.
    factor = phase.optimizer.scale_loss(tf.ones((), tf.float32))
    targets = [fraction.numerator for fraction in fractions]
    weights = [*tf.unstack(scales, len(fractions)), penalty[1]]
    targets.append(penalty[0])
    seeds = [
        tf.cast(weight, target.dtype) * tf.cast(factor, target.dtype)
        for weight, target in zip(weights, targets, strict=True)
    ]
    sources = [variable.value for variable in phase.variables]
    return list(tape.gradient(targets, sources, output_gradients=seeds))
