"""One optimizer step on all ranks: forward, sum, backward, sum, update.

The loss is L = Σ w N / D + R over its terms. N and D are the sums of their numerators and
denominators over ranks, w their weights and R the regularisation. Its gradient is the sum over
ranks of Σ (w / D) dn, plus dR once; so D is summed first and the gradients after the backward pass.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import feed, fingerprints, nest
from tfparallel_trainer.objective import (
    finite,
    gradients,
    independence,
    loss,
    metrics,
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


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gives on every process alike."""

    loss: float
    terms: dict[str, float]
    """The loss of each output; empty when there is only one."""
    flags: frozenset[Flag]
    finite: bool
    """Whether the loss and, without loss scaling, all gradients are finite numbers."""


class TrainStep:
    """The step as a traced function; one for each pattern of ranks with and without examples.

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
        self._traced: dict[tuple[bool, ...], Any] = {}
        self._kinds: Kinds | None = None

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
        outcome = self._function(pattern)(
            tf.constant(step, tf.int64),
            tf.constant(requests, tf.float64),
            nest.convert(tf.convert_to_tensor, parts),
        )
        return outcome_of(self._replicas[0], step, [tensor.numpy() for tensor in outcome])

    def _function(self, pattern: tuple[bool, ...]) -> Any:
        if not all(pattern) and self._kinds is None:
            # Only a rank with examples knows which kinds of gradients its model has.
            self._function((True,) * len(pattern))
        if pattern not in self._traced:
            self._traced[pattern] = self._trace(pattern)
        return self._traced[pattern]

    def _trace(self, pattern: tuple[bool, ...]) -> Any:
        def run(step: tf.Tensor, flags: tf.Tensor, parts: Any) -> Any:
            waiting = iter(parts)
            outcomes = []
            for local_replica, has_part in zip(self._replicas, pattern, strict=True):
                asked = flags if local_replica is self._replicas[0] else tf.zeros_like(flags)
                with tf.device(local_replica.device):
                    part = next(waiting) if has_part else None
                    outcomes.append(self._rank_step(local_replica, part, step, asked))
            return outcomes[0]

        with user.guard(self._module.path, "tracing a training step raised"):
            return tf.function(run, autograph=False).get_concrete_function(
                tf.TensorSpec((), tf.int64),
                tf.TensorSpec((len(Flag) + fingerprints.SUMMANDS,), tf.float64),
                [self._spec for has_part in pattern if has_part],
            )

    def _rank_step(
        self, replica: replica.Replica, part: Any, step: tf.Tensor, flags: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        before = finite.Memory(replica) if self._leaves_out else None
        shared = of_rank(
            replica, part, step, flags, kinds=self._kinds, maybe_empty=self._all_take_part
        )
        self._kinds = shared.kinds
        variables = replica.model.trainable_variables
        if before is None:
            replica.optimizer.apply(shared.gradients, variables)
        else:
            before.apply_if(shared.finite, shared.gradients, variables)
        return shared.loss, shared.terms, shared.flags, shared.finite


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
            f"training_data gives other examples on some replicas than on others, which shows "
            f"in step {step + 1}: let it give the same in the same order everywhere. Sort "
            "lists of files, and let what is random follow from context.seed and context.epoch."
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
    """What a batch that is divided over ranks leads to, the same on all of them.

    No weight that is trained has changed.
    """

    gradients: list[Any]
    """Of the trainable variables, over all ranks."""
    kinds: Kinds
    """Of the gradients of one rank."""
    loss: tf.Tensor
    terms: tf.Tensor
    """The loss of each output."""
    flags: tf.Tensor
    finite: tf.Tensor


def of_rank(
    replica: replica.Replica,
    part: Any,
    step: tf.Tensor,
    flags: tf.Tensor,
    *,
    kinds: Sequence[gradients.Kind] | None = None,
    maybe_empty: bool = False,
) -> Shared:
    """Compute a batch together with the other ranks.

    Args:
        replica: this rank's replica.
        part: its examples; None when it has none.
        step: number of the step.
        flags: what this rank asks for, float64 in the order of `Flag`, and further numbers.
        kinds: of the gradients, which a rank without examples cannot know.
        maybe_empty: whether the part may hold no examples, not being None.
    """
    replica.data.begin(collectives.Program.TRAIN)
    variables = replica.model.trainable_variables
    with tf.GradientTape() as tape:
        fractions = [] if part is None else _forward(replica, part, step)
        penalty = _penalty(replica)
    sums = replica.data.sum(tf.concat([_denominators(replica, fractions), flags], 0))
    scales = _scales(replica, sums[: len(replica.terms)])
    if part is None:
        of_each = list(kinds or ())
        computed = gradients.zeros(of_each, variables)
    else:
        computed = _backward(replica, tape, fractions, penalty, scales, variables)
        of_each = [gradients.kind(one) for one in computed]
        if maybe_empty:
            empty = tf.equal(tf.shape(nest.leaves(part)[0])[0], 0)
            computed = gradients.nothing_if(empty, computed, variables)
    *totals, values = gradients.add_up(
        replica.data, computed, of_each, variables, [_numerators(replica, fractions)]
    )
    values = values * scales
    total = tf.reduce_sum(values) + tf.cast(penalty, tf.float64)
    return Shared(
        gradients=totals,
        kinds=of_each,
        loss=total,
        terms=values,
        flags=sums[len(replica.terms) :],
        finite=finite.of_step(replica, total, totals),
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
    with tf.GradientTape() as tape:
        isolated = metrics.isolate(replica, lambda: _forward(replica, part, step, alone=True))
        penalty = _penalty(replica)
    fractions, variables = isolated.result, replica.model.trainable_variables
    scales = _scales(replica, _denominators(replica, fractions))
    values = _numerators(replica, fractions) * scales
    return Computed(
        gradients=_backward(replica, tape, fractions, penalty, scales, variables),
        loss=tf.reduce_sum(values) + tf.cast(penalty, tf.float64),
        terms=values,
        isolated=isolated,
    )


def _forward(
    replica: replica.Replica, part: Any, step: tf.Tensor, *, alone: bool = False
) -> list[loss.Fraction]:
    x, y, weight = part
    with replica.drawing(step, alone=alone):
        y_pred = synchrony.forward(replica.model, replica.data, x)
    replica.model.compute_metrics(x, y, y_pred, weight)
    return replica.fractions(part, y_pred)


def _denominators(replica: replica.Replica, fractions: list[loss.Fraction]) -> tf.Tensor:
    if not fractions:
        return tf.zeros((len(replica.terms),), tf.float64)
    return tf.stack([fraction.denominator for fraction in fractions])


def _numerators(replica: replica.Replica, fractions: list[loss.Fraction]) -> tf.Tensor:
    if not fractions:
        return tf.zeros((len(replica.terms),), tf.float64)
    return tf.stack([tf.cast(fraction.numerator, tf.float64) for fraction in fractions])


def _scales(replica: replica.Replica, denominators: tf.Tensor) -> tf.Tensor:
    """What each numerator is multiplied by: its weight, over the sum of the denominators."""
    weights = tf.constant([term.weight for term in replica.terms], tf.float64)
    divided = tf.constant([term.divided for term in replica.terms])
    return tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)


def _backward(
    replica: replica.Replica,
    tape: tf.GradientTape,
    fractions: list[loss.Fraction],
    penalty: tf.Tensor,
    scales: tf.Tensor,
    variables: Sequence[Any],
) -> list[Any]:
    # A loss-scaling optimizer (mixed precision) multiplies here and divides again when it applies.
    factor = replica.optimizer.scale_loss(tf.ones((), tf.float32))
    targets = [fraction.numerator for fraction in fractions]
    seeds = [
        tf.cast(scale, target.dtype) * tf.cast(factor, target.dtype)
        for scale, target in zip(tf.unstack(scales, len(fractions)), targets, strict=True)
    ]
    targets.append(penalty)
    seeds.append(replica.data.of_first(tf.cast(factor, penalty.dtype)))  # once, not for each rank
    sources = [variable.value for variable in variables]
    return list(tape.gradient(targets, sources, output_gradients=seeds))


def _penalty(replica: replica.Replica) -> tf.Tensor:
    """The regularisation of the weights, which every rank computes alike."""
    penalty = tf.zeros((), keras.config.floatx())
    for variable in replica.model.trainable_variables:
        if variable.regularizer is not None:
            penalty += tf.cast(variable.regularizer(variable), penalty.dtype)
    return penalty
