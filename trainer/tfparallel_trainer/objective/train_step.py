"""One training step over all ranks: forward, backward, sum of gradients.

An engine applies the gradients.

The loss is L = Σ w N / D + R over its terms. N and D are the sums of their numerators and
denominators over ranks, w their weights and R the regularisation. Its gradient is the sum over
ranks of Σ (w / D) dn, plus dR once. So D is needed before the backward pass. Where it follows from
the number of examples, every rank knows it, and a step has one sum. Where data decide about it, as
masks do, it is summed first.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfparallel_trainer import random_state
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import nest, order
from tfparallel_trainer.objective import gradient_sums, lookups, metric_sums, phases, updates
from tfparallel_trainer.objective.gradient_sums import Kind
from tfparallel_trainer.objective.loss import Fraction
from tfparallel_trainer.objective.metric_sums import Isolated
from tfparallel_trainer.objective.replica import Replica


@dataclasses.dataclass(frozen=True, slots=True)
class PhaseTraits:
    """What the trace of a phase shows, the same on every rank that has examples."""

    kinds: list[Kind]
    """Kinds of the gradients of one rank."""
    values_per_example: list[int | None]
    """Of each term (see `loss.Fraction`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReducedPhase:
    """Result of one phase after the all-reduce: equal on all ranks, not yet applied."""

    gradients: list[Any]
    """Gradients of the variables that the phase trains, over all ranks."""
    traits: PhaseTraits
    loss: tf.Tensor
    terms: tf.Tensor
    """The loss of each output."""
    requests: tf.Tensor
    """Requests, summed over all processes; the first phase has them all."""
    finite: tf.Tensor
    metric_states: list[tf.Tensor]
    """Values of the model's metrics_variables over all ranks; empty unless requested."""


class StepOutput(NamedTuple):
    """Result of a step over all ranks, as a pytree of tensors or arrays."""

    loss: Any
    terms: Any
    """The loss of each output."""
    requests: Any
    """Summed over all processes."""
    finite: Any
    """Whether the loss and, where they are looked at, all gradients are finite numbers."""
    metrics: Any = None
    """Over all ranks, by name; None if the step adds none up."""

    def pack(self) -> tf.Tensor:
        """All but the metrics as one float64 vector, which takes one read."""
        head = tf.stack([self.loss, tf.cast(self.finite, tf.float64)])
        return tf.concat([head, self.terms, self.requests], 0)

    @classmethod
    def unpack(
        cls, vector: Any, terms: int, metrics: Mapping[str, float] | None = None
    ) -> "StepOutput":
        """From the array of such a vector, which has so many terms."""
        end = 2 + terms
        return cls(vector[0], vector[2:end], vector[end:], bool(vector[1]), metrics)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankInput:
    """What a rank computes a step from."""

    part: Any
    """Its examples. None: it has none."""
    step: tf.Tensor
    """Number of the step."""
    requests: tf.Tensor
    """Requests of this rank, float64 in the order of `StepRequest`, and further numbers."""
    examples: tf.Tensor | None = None
    """Number of examples of all ranks in this step, float64; None: not known."""
    most_examples: int | None = None
    """No rank has more in this step, which is divided as `order.split` does; None: not known."""
    full_part: int | None = None
    """No rank has more in a full batch, by which ranks choose what they send of sparse gradients.
    None: they send each mention of a row."""
    traits: Sequence[PhaseTraits] | None = None
    """Traits of each phase. A rank without examples cannot find them itself."""
    maybe_empty: bool = False
    """Whether the part may be empty without being None."""
    gives_metrics: bool = False
    """Whether the last phase adds the metrics' states up too."""
    is_trial: bool = False
    """Whether a check traces the step: all ranks then draw alike."""


def compute_phases(
    replica: Replica, rank_input: RankInput
) -> Iterator[tuple[phases.Computation, ReducedPhase]]:
    """Compute a step with other ranks, a phase at a time: apply each before asking for the next."""
    program = collectives.Program.VERIFY if rank_input.is_trial else collectives.Program.TRAIN
    # Ranks send messages of another size where they do not know how many rows each of them has.
    replica.data.begin(program, variant=int(rank_input.most_examples is None))
    for index, phase in enumerate(replica.computations):
        yield phase, _compute_phase(replica, index, rank_input)


def combine_phases(
    results: Sequence[ReducedPhase], values: Mapping[str, tf.Tensor] | None = None
) -> StepOutput:
    """Combine the phases of a step, with the values of its metrics."""
    return StepOutput(
        loss=tf.add_n([phase.loss for phase in results]),
        terms=tf.concat([phase.terms for phase in results], 0),
        requests=results[0].requests,
        finite=tf.reduce_all(tf.stack([phase.finite for phase in results])),
        metrics=values,
    )


def _compute_phase(replica: Replica, index: int, rank_input: RankInput) -> ReducedPhase:
    """Compute a phase: forward, backward, sum of gradients."""
    phase, part = replica.computations[index], rank_input.part
    variables, count = phase.variables, _count_examples(part)
    updated_weights = updates.UpdateReduction(replica.model, replica.updates or updates.Updates())
    noted: list[PhaseTraits] = []

    def compute() -> _RankPhase:
        rank_phase, traits = _compute_rank(replica, index, rank_input)
        noted.append(traits)
        return rank_phase

    # One rank compiles its step as a whole. Checks compare with what XLA does not compile, and it
    # draws other numbers than TensorFlow.
    is_compiled = replica.is_compiled and replica.data.size > 1 and not rank_input.is_trial
    rank_phase = _compiled(compute) if is_compiled and part is not None else compute()
    traits = noted[-1]
    # Sum of gradients, with numerators, what ranks request, weights that layers assign, and states
    # of metrics.
    gives_metrics = rank_input.gives_metrics and phase is replica.computations[-1]
    states = metric_sums.contributions(replica) if gives_metrics else []
    weights = updated_weights.contributions(count)
    requests = rank_input.requests[:0] if index else rank_input.requests
    also = [rank_phase.numerators, requests, *weights, *states]
    reduced = gradient_sums.all_reduce(
        replica.data,
        rank_phase.gradients,
        traits.kinds,
        variables,
        also,
        _shares(replica, rank_input),
    )
    reduced_gradients, (numerator_sums, request_sums, *others) = _split(reduced, len(variables))
    weight_sums, metric_states = _split(others, len(weights))
    updated_weights.assign(weight_sums)
    terms = numerator_sums * rank_phase.scales
    total = tf.reduce_sum(terms) + tf.cast(rank_phase.penalty, tf.float64)
    return ReducedPhase(
        gradients=reduced_gradients,
        traits=traits,
        loss=total,
        terms=terms,
        requests=request_sums,
        finite=gradient_sums.are_finite(phase.optimizer, total, reduced_gradients),
        metric_states=metric_states,
    )


class _RankPhase(NamedTuple):
    """What a rank computes of a phase before the sum over ranks, as a pytree of tensors."""

    gradients: list[Any]
    """Of the variables that the phase trains; None where the loss does not depend on one."""
    numerators: tf.Tensor
    """Of the terms, float64 [terms]."""
    scales: tf.Tensor
    """What the sums of the numerators are multiplied by."""
    penalty: tf.Tensor


def _compiled(compute: Callable[[], _RankPhase]) -> _RankPhase:
    """Compute as a program of XLA, to which only tensors come and from which only they return."""

    def run() -> _RankPhase:
        computed = compute()
        return computed._replace(gradients=list(map(lookups.separate, computed.gradients)))

    program = tf.function(run, autograph=False, jit_compile=True).get_concrete_function()
    returned: _RankPhase = program()
    return returned._replace(gradients=list(map(lookups.rejoin, returned.gradients)))


def _compute_rank(
    replica: Replica, index: int, rank_input: RankInput
) -> tuple[_RankPhase, PhaseTraits]:
    """Compute a rank's part of a phase; denominators that data decide about are summed first."""
    phase, part = replica.computations[index], rank_input.part
    variables, count = phase.variables, _count_examples(part)
    # Forward: the terms of the loss as fractions, and the regularisation.
    with tf.GradientTape() as tape, updates.local_kept(replica, tf.equal(count, 0)):
        fractions = []
        if part is not None:
            alike = rank_input.is_trial
            fractions = _forward(replica, phase, part, rank_input.step, alike=alike)
        penalty = phase.penalty()
    numerators, denominators = _sums(phase, fractions)
    traits = None if rank_input.traits is None else rank_input.traits[index]
    values_per_example = [fraction.values_per_example for fraction in fractions]
    if part is None and traits is not None:
        values_per_example = traits.values_per_example
    denominator_sums = _known_denominators(phase, values_per_example, rank_input.examples)
    if denominator_sums is None:
        denominator_sums = replica.data.sum(denominators)
    scales = _scales(phase, denominator_sums)
    # Backward: this rank's part of the gradients.
    if part is None:
        kinds = [] if traits is None else traits.kinds
        gradients = gradient_sums.zeros(kinds, variables)
    else:
        seed = replica.data.only_first(tf.ones((), penalty.dtype))  # once, not for each rank
        gradients = _backward(phase, tape, fractions, (penalty, seed), scales)
        kinds = [gradient_sums.classify(gradient) for gradient in gradients]
        if rank_input.full_part is not None:
            kinds = [
                gradient_sums.choose_exchange(
                    kind, variable, replica.data, phase.optimizer, rank_input.full_part
                )
                for kind, variable in zip(kinds, variables, strict=True)
            ]
        if rank_input.maybe_empty:
            gradients = gradient_sums.zero_if_empty(tf.equal(count, 0), gradients, variables)
    return (
        _RankPhase(gradients, numerators, scales, penalty),
        PhaseTraits(kinds, values_per_example),
    )


def _count_examples(part: Any) -> tf.Tensor:
    return tf.constant(0) if part is None else tf.shape(nest.leaves(part)[0])[0]


def _shares(replica: Replica, rank_input: RankInput) -> lookups.Shares | None:
    """How many examples each rank has, where that follows from their number."""
    examples, most = rank_input.examples, rank_input.most_examples
    if examples is None or most is None:
        return None
    return lookups.Shares(order.part_sizes(tf.cast(examples, tf.int64), replica.data.size), most)


def _split(tensors: list[Any], count: int) -> tuple[list[Any], list[Any]]:
    return tensors[:count], tensors[count:]


def nothing(spec: Any) -> Any:
    """A part without examples."""
    return nest.convert(
        lambda leaf: tf.zeros((0, *(size or 1 for size in leaf.shape[1:])), leaf.dtype), spec
    )


@dataclasses.dataclass(frozen=True, slots=True)
class LocalGradients:
    """Gradients of a batch that no other rank shares; no variable has changed."""

    gradients: list[Any]
    """Of the trainable variables."""
    loss: tf.Tensor
    terms: tf.Tensor
    """The loss of each output."""
    isolated: Isolated


def compute_local_gradients(replica: Replica, part: Any, step: tf.Tensor) -> LocalGradients:
    """Compute the gradients of a batch that no other rank shares."""
    (phase,) = replica.computations
    with tf.GradientTape() as tape:
        isolated = metric_sums.isolate(
            replica,
            lambda: (_forward(replica, phase, part, step, alone=True), phase.penalty()),
            tape,
        )
    fractions, penalty = isolated.result
    numerators, denominators = _sums(phase, fractions)
    scales = _scales(phase, denominators)
    values = numerators * scales
    once = penalty, tf.ones((), penalty.dtype)
    return LocalGradients(
        gradients=_backward(phase, tape, fractions, once, scales, isolated.watched),
        loss=tf.reduce_sum(values) + tf.cast(penalty, tf.float64),
        terms=values,
        isolated=isolated,
    )


def _forward(
    replica: Replica,
    phase: phases.Computation,
    part: Any,
    step: tf.Tensor,
    *,
    alone: bool = False,
    alike: bool = False,
) -> list[Fraction]:
    goes_on = phase is not replica.computations[0]
    with seeded_from_step(replica, step, alone=alone, goes_on=goes_on, alike=alike):
        return phase.fractions(part, replica.data, training=True)


@contextlib.contextmanager
def seeded_from_step(
    replica: Replica,
    step: tf.Tensor,
    *,
    alone: bool = False,
    goes_on: bool = False,
    alike: bool = False,
) -> Iterator[None]:
    """Seed random operations from the step and the rank during tracing.

    Ranks have different seeds, or each would repeat the others' dropout masks. A resumed run draws
    the same numbers, but TensorFlow's own operations (`tf.random.normal`) start again. `alone`:
    other processes run what is traced here, so the rank is not known. `goes_on`: an earlier phase
    has already drawn. `alike`: all ranks draw as the first one.
    """
    data = replica.data
    index = 0 if alike else data.index
    for variable, first in () if goes_on else replica.seeds:
        offset = tf.cast(step * data.size + index, variable.dtype)
        variable.assign(tf.stack([tf.constant(first[0]) + offset, tf.constant(first[1])]))
    is_known = isinstance(index, int) and not alone
    # Without a seed, TensorFlow's own operations differ between processes and runs.
    tf.compat.v1.set_random_seed(replica.seed + index if is_known else None)
    with random_state.drawing_from(replica.generator):
        yield


def _sums(phase: phases.Computation, fractions: list[Fraction]) -> tuple[tf.Tensor, tf.Tensor]:
    """Numerators and denominators of the terms, float64 [terms]; zeros without examples."""
    if not fractions:
        nothing = tf.zeros((len(phase.terms),), tf.float64)
        return nothing, nothing
    numerators = [tf.cast(fraction.numerator, tf.float64) for fraction in fractions]
    return tf.stack(numerators), tf.stack([fraction.denominator for fraction in fractions])


def divides_by_data(phase: phases.Computation, traits: PhaseTraits) -> bool:
    """Whether data decide what a phase divides its loss by."""
    return _known_denominators(phase, traits.values_per_example, tf.ones((), tf.float64)) is None


def _known_denominators(
    phase: phases.Computation, values_per_example: Sequence[int | None], examples: tf.Tensor | None
) -> tf.Tensor | None:
    """The sums of the denominators over ranks, where they follow from the number of examples."""
    if examples is None or not values_per_example:
        return None
    terms = zip(phase.terms, values_per_example, strict=True)
    counts = [count if term.divided else 1 for term, count in terms]
    return None if None in counts else examples * tf.constant(counts, tf.float64)


def _scales(phase: phases.Computation, denominators: tf.Tensor) -> tf.Tensor:
    """The factor of each numerator: its weight, over the sum of the denominators."""
    weights = tf.constant([term.weight for term in phase.terms], tf.float64)
    divided = tf.constant([term.divided for term in phase.terms])
    return tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)


def _backward(
    phase: phases.Computation,
    tape: tf.GradientTape,
    fractions: list[Fraction],
    penalty: tuple[tf.Tensor, tf.Tensor],
    scales: tf.Tensor,
    assigned: Sequence[tuple[Any, tf.Tensor]] = (),
) -> list[Any]:
    """The gradients of the fractions and of a penalty, with the penalty's scale.

    `assigned` are values that the forward pass would have assigned to variables. The gradient of
    such a value counts for its variable.
    """
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
    values = [value for _, value in assigned]
    results = tape.gradient(targets, [*sources, *values], output_gradients=seeds)
    totals, more = results[: len(sources)], results[len(sources) :]
    for index, variable in enumerate(phase.variables):
        for (assigned_variable, _), gradient in zip(assigned, more, strict=True):
            if assigned_variable is variable:
                totals[index] = gradient_sums.add(totals[index], gradient)
    return list(totals)
