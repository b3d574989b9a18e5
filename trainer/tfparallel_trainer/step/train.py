"""One optimizer step on all ranks: forward, sum, backward, sum, update.

With terms t of the loss, N and D the sums of their numerators and denominators over ranks, w their
weights and R the regularisation, the loss is L = Σ w N / D + R. Its gradient is the sum over ranks
of Σ (w / D) dn, plus dR once; so D is summed first and the gradients after the backward pass.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.data import feed, marks, nest
from tfparallel_trainer.mesh import collectives
from tfparallel_trainer.step import finite, gradients, loss, metrics, replica, synchrony


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
        self._all_take_part = any(synchrony.layers(own.model) for own in replicas)
        self._traced: dict[tuple[bool, ...], Any] = {}
        self._kinds: Kinds | None = None

    def __call__(self, step: int, batch: feed.Batch, asked: frozenset[Flag]) -> Outcome:
        """Make step number `step` (from 0) on this process's parts of a batch."""
        given = batch.parts
        if self._all_take_part:  # in the sums within the forward pass
            given = [nothing(self._spec) if part is None else part for part in given]
        pattern = tuple(part is not None for part in given)
        told = [*(float(flag in asked) for flag in Flag), *marks.summands(batch.mark)]
        parts = [part for part in given if part is not None]
        outcome = self._function(pattern)(
            tf.constant(step, tf.int64),
            tf.constant(told, tf.float64),
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
            for own, has_part in zip(self._replicas, pattern, strict=True):
                asked = flags if own is self._replicas[0] else tf.zeros_like(flags)
                with tf.device(own.device):
                    outcomes.append(
                        self._rank_step(own, next(waiting) if has_part else None, step, asked)
                    )
            return outcomes[0]

        with user.guard(self._module.path, "tracing a training step raised"):
            return tf.function(run, autograph=False).get_concrete_function(
                tf.TensorSpec((), tf.int64),
                tf.TensorSpec((len(Flag) + marks.SUMMANDS,), tf.float64),
                [self._spec for has_part in pattern if has_part],
            )

    def _rank_step(
        self, own: replica.Replica, part: Any, step: tf.Tensor, flags: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        before = finite.Memory(own) if self._leaves_out else None
        found = of_rank(own, part, step, flags, kinds=self._kinds, maybe_empty=self._all_take_part)
        self._kinds = found.kinds
        variables = own.model.trainable_variables
        if before is None:
            own.optimizer.apply(found.gradients, variables)
        else:
            before.apply_if(found.finite, found.gradients, variables)
        return found.loss, found.terms, found.flags, found.finite


def outcome_of(own: replica.Replica, step: int, values: Sequence[Any]) -> Outcome:
    """What a step gave.

    Args:
        own: any replica.
        step: number of the step.
        values: the loss, that of each output, the sums of flags and marks, and whether all are
            finite, as arrays.

    Raises:
        UserCodeError: processes were given different examples.
    """
    total, terms, heard, is_finite = values
    if not marks.alike(heard[len(Flag) :]):
        raise errors.UserCodeError(
            f"training_data gives other examples on some replicas than on others, which shows "
            f"in step {step + 1}: let it give the same in the same order everywhere. Sort "
            "lists of files, and let what is random follow from context.seed and context.epoch."
        ).on_every_process()
    return Outcome(
        loss=float(total),
        terms=own.by_output(terms),
        flags=frozenset(flag for flag in Flag if heard[flag] > 0),
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
    own: replica.Replica,
    part: Any,
    step: tf.Tensor,
    flags: tf.Tensor,
    *,
    kinds: Sequence[gradients.Kind] | None = None,
    maybe_empty: bool = False,
) -> Shared:
    """Compute a batch together with the other ranks.

    Args:
        own: this rank's replica.
        part: its examples; None when it has none.
        step: number of the step.
        flags: what this rank asks for, float64 in the order of `Flag`, and further numbers.
        kinds: of the gradients, which a rank without examples cannot know.
        maybe_empty: whether the part may hold no examples, not being None.
    """
    own.data.begin(collectives.Program.TRAIN)
    variables = own.model.trainable_variables
    with tf.GradientTape() as tape:
        found = [] if part is None else _forward(own, part, step)
        penalty = _penalty(own)
    sums = own.data.sum(tf.concat([_denominators(own, found), flags], 0))
    scales = _scales(own, sums[: len(own.terms)])
    if part is None:
        of_each = list(kinds or ())
        computed = gradients.zeros(of_each, variables)
    else:
        computed = _backward(own, tape, found, penalty, scales, variables)
        of_each = [gradients.kind(one) for one in computed]
        if maybe_empty:
            empty = tf.equal(tf.shape(nest.leaves(part)[0])[0], 0)
            computed = gradients.nothing_if(empty, computed, variables)
    *totals, values = gradients.add_up(
        own.data, computed, of_each, variables, [_numerators(own, found)]
    )
    values = values * scales
    total = tf.reduce_sum(values) + tf.cast(penalty, tf.float64)
    return Shared(
        gradients=totals,
        kinds=of_each,
        loss=total,
        terms=values,
        flags=sums[len(own.terms) :],
        finite=finite.of_step(own, total, totals),
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
    apart: metrics.Apart


def of_batch(own: replica.Replica, part: Any, step: tf.Tensor) -> Computed:
    """Compute what a batch leads to when it is shared with no other rank."""
    with tf.GradientTape() as tape:
        apart = metrics.apart(own, lambda: _forward(own, part, step, alone=True))
        penalty = _penalty(own)
    found = apart.result
    scales = _scales(own, _denominators(own, found))
    values = _numerators(own, found) * scales
    return Computed(
        gradients=_backward(own, tape, found, penalty, scales, own.model.trainable_variables),
        loss=tf.reduce_sum(values) + tf.cast(penalty, tf.float64),
        terms=values,
        apart=apart,
    )


def _forward(
    own: replica.Replica, part: Any, step: tf.Tensor, *, alone: bool = False
) -> list[loss.Fraction]:
    x, y, weight = part
    with own.drawing(step, alone=alone):
        y_pred = synchrony.forward(own.model, own.data, x)
    own.model.compute_metrics(x, y, y_pred, weight)
    return own.fractions(part, y_pred)


def _denominators(own: replica.Replica, found: list[loss.Fraction]) -> tf.Tensor:
    if not found:
        return tf.zeros((len(own.terms),), tf.float64)
    return tf.stack([fraction.denominator for fraction in found])


def _numerators(own: replica.Replica, found: list[loss.Fraction]) -> tf.Tensor:
    if not found:
        return tf.zeros((len(own.terms),), tf.float64)
    return tf.stack([tf.cast(fraction.numerator, tf.float64) for fraction in found])


def _scales(own: replica.Replica, denominators: tf.Tensor) -> tf.Tensor:
    """What each numerator is multiplied by: its weight, over the sum of the denominators."""
    weights = tf.constant([term.weight for term in own.terms], tf.float64)
    divided = tf.constant([term.divided for term in own.terms])
    return tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)


def _backward(
    own: replica.Replica,
    tape: tf.GradientTape,
    found: list[loss.Fraction],
    penalty: tf.Tensor,
    scales: tf.Tensor,
    variables: Sequence[Any],
) -> list[Any]:
    # A loss-scaling optimizer (mixed precision) multiplies here and divides again when it applies.
    factor = own.optimizer.scale_loss(tf.ones((), tf.float32))
    targets = [fraction.numerator for fraction in found]
    seeds = [
        tf.cast(scale, target.dtype) * tf.cast(factor, target.dtype)
        for scale, target in zip(tf.unstack(scales, len(found)), targets, strict=True)
    ]
    targets.append(penalty)
    seeds.append(own.data.of_first(tf.cast(factor, penalty.dtype)))  # once, not for each rank
    sources = [variable.value for variable in variables]
    return list(tape.gradient(targets, sources, output_gradients=seeds))


def _penalty(own: replica.Replica) -> tf.Tensor:
    """The regularisation of the weights, which every rank computes alike."""
    penalty = tf.zeros((), keras.config.floatx())
    for variable in own.model.trainable_variables:
        if variable.regularizer is not None:
            penalty += tf.cast(variable.regularizer(variable), penalty.dtype)
    return penalty
