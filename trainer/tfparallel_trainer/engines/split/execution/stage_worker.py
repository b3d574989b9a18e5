"""Executes the forward passes of one rank's stage, in order."""

import contextlib
import dataclasses
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import nest, order
from tfparallel_trainer.engines.split.execution import microbatch_function, rank_model
from tfparallel_trainer.engines.split.execution.microbatches import Arguments, Microbatches
from tfparallel_trainer.engines.split.execution.ordering import OrderingScope
from tfparallel_trainer.engines.split.execution.segment_pass import Counted
from tfparallel_trainer.engines.split.layers import sharded
from tfparallel_trainer.engines.split.model import graph, interpreter, step_effects
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule, segments
from tfparallel_trainer.engines.split.pipeline.partition import Partition
from tfparallel_trainer.objective import loss, synchrony
from tfparallel_trainer.objective.gradient_sums import Kind

_BORROWED = 1 << 16
"""Keeps the seeds of a random layer apart that two stages call."""

Address = tuple[cutting.Transfer, programs.Message]
"""Identifies a message among all those of a rank."""

Shares = tuple[int, ...]
"""Number of examples of each place along the data axis."""

Slot = tuple[Hashable, ...]
"""The key of a loop-carried tensor."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The input of a program."""

    shares: Shares
    """Numbers of examples, known when the program is traced."""
    parts: Mapping[int, Any]
    """(x, y, sample_weight) by place along the data axis, for the places that have examples in this
    process."""
    step: tf.Tensor
    """Number of the step: a scalar int64."""
    draws_alike: bool = False
    """Whether all places and microbatches draw the same random numbers, for a check."""


@dataclasses.dataclass(slots=True)
class StageWork:
    """The work of a stage on microbatches of one size, and what its trace has found."""

    examples: int
    """Number of examples of a microbatch."""
    terms: list[loss.Term] = dataclasses.field(default_factory=list)
    """Terms of the loss that the stage computes."""
    changed: list[str] = dataclasses.field(default_factory=list)
    """Keys of the weights that a forward pass assigns."""
    kinds: dict[str, Kind] = dataclasses.field(default_factory=dict)
    """Kinds of the gradients, by the keys of weights."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """The results of a forward pass."""

    work: StageWork
    sent: dict[int, tf.Tensor]
    terms: list[Counted]
    changed: dict[str, tf.Tensor]
    pullback: microbatch_function.Pullback | None

    @property
    def tensors(self) -> list[tf.Tensor]:
        """All tensors that the pass computes."""
        numerators = [fraction.numerator for _, fraction in self.terms]
        return [*self.sent.values(), *numerators, *self.changed.values()]

    @property
    def kept(self) -> list[tf.Tensor]:
        """The tensors that the backward pass needs."""
        fractions = [
            tensor
            for _, fraction in self.terms
            for tensor in (fraction.numerator, fraction.denominator)
        ]
        if not isinstance(self.pullback, microbatch_function.FunctionPullback):
            return fractions
        return [*fractions, *self.pullback.residuals]

    def with_kept(self, kept: Sequence[tf.Tensor]) -> "ForwardResult":
        """The results of another microbatch, for its backward pass."""
        remaining = iter(kept)
        terms = [(term, loss.Fraction(next(remaining), next(remaining))) for term, _ in self.terms]
        pullback = self.pullback
        if isinstance(pullback, microbatch_function.FunctionPullback):
            pullback = pullback.with_residuals(list(remaining))
        return dataclasses.replace(self, terms=terms, pullback=pullback)


class StageWorker:
    """Executes the actions of one rank in a program that only goes forward."""

    def __init__(
        self,
        rank: rank_model.RankModel,
        partition: Partition,
        workload: Workload,
        *,
        training: bool,
    ) -> None:
        self.rank = rank
        self.ordering = OrderingScope(rank.device)
        self._partition = partition
        self._workload = workload
        self._training = training
        self.examples = workload.shares[rank.data]
        """Number of its microbatches."""
        counts = partition.counts(workload.shares)
        self._rows = order.split(self.examples, counts[rank.data]) if self.examples else []
        self.sizes = self._sizes_of_microbatches(counts)
        """Keys of the microbatches: those with equal keys share a function."""
        self._works: dict[tuple[int, ...], StageWork] = {}
        self._functions = microbatch_function.MicrobatchFunctions(
            self.sizes, recomputes=training and partition.segment_ends is not None
        )
        self._iteration: Any = 0
        """The current iteration of a loop, a scalar int32; 0 outside a loop. Microbatches have the
        numbers of the first iteration."""
        self._messages: dict[Address, tf.Tensor] = {}
        """Received for later actions, or to be sent."""
        with tf.device(rank.device):
            self.values = {
                key: tf.convert_to_tensor(variable) for key, variable in rank.weights.items()
            }
            self._microbatches = self._divide_batch()
        self.numerators = [tf.zeros((), tf.float64) for _ in rank.head.terms]
        """What the rank adds to the loss: for each term, over the examples so far."""
        of_examples = float(self.examples if rank.is_last and rank.is_first else 0)
        self.denominators = [*self.numerators[1:], tf.constant(of_examples, tf.float64)]

    def take_message(self, address: Address) -> tf.Tensor:
        """Return the tensor of an outgoing message."""
        return self._messages.pop(address)

    def store_message(self, address: Address, tensor: tf.Tensor) -> None:
        """Keep the tensor of a received message for the action that needs it."""
        self._messages[address] = tensor

    def begin_loop(self, iterations: int) -> None:
        """Prepare for a loop whose iterations repeat the latest actions."""

    def begin_iteration(self, iteration: tf.Tensor, carried: Mapping[Slot, Any]) -> None:
        """Continue with the loop-carried tensors of the previous iteration."""
        self._iteration = iteration
        self._restore(carried)

    def end_iteration(self) -> dict[Slot, Any]:
        """Return the loop-carried tensors for the next iteration."""
        self._renumber(-1)
        return self.carried()

    def end_loop(self, iterations: int, carried: Mapping[Slot, Any]) -> None:
        """Continue with the loop-carried tensors of the last iteration."""
        self._iteration = 0
        self._restore(carried)
        self._renumber(iterations)

    def carried(self) -> dict[Slot, Any]:
        """What later actions need of earlier ones: tensors and arrays."""
        carried: dict[Slot, Any] = {}
        carried |= {("message", *address): tensor for address, tensor in self._messages.items()}
        carried |= {("numerator", index): tensor for index, tensor in enumerate(self.numerators)}
        carried |= {
            ("denominator", index): tensor for index, tensor in enumerate(self.denominators)
        }
        return carried | {("order", name): token for name, token in self.ordering.carried().items()}

    def _restore(self, carried: Mapping[Slot, Any]) -> None:
        """Take what `carried` returned elsewhere."""
        parts: dict[Hashable, dict[Any, Any]] = {}
        for (name, *details), tensor in carried.items():
            parts.setdefault(name, {})[tuple(details)] = tensor
        self._messages = parts.get("message", {})
        self.numerators = list(parts["numerator"].values())
        self.denominators = list(parts["denominator"].values())
        self.ordering.restore({name: token for (name,), token in parts["order"].items()})

    def _renumber(self, offset: int) -> None:
        """Give what is kept for a microbatch to the one so many behind it."""
        self._messages = {
            (
                transfer,
                dataclasses.replace(message, microbatch=message.microbatch + offset),
            ): tensor
            for (transfer, message), tensor in self._messages.items()
        }

    def shape_of(self, address: Address) -> tuple[list[int], str]:
        """Shape and type of the tensor that a message brings."""
        _, message = address
        tensor = self._partition.model.tensors[message.tensor]
        sizes = self._shape(len(self._rows[message.microbatch]), message.tensor)
        if None in sizes:
            raise errors.UserCodeError(
                f"{self._name_maker(message.tensor)} gives a tensor of the shape {tensor.shape} to "
                "another stage, whose size only the data would tell. Give keras.Input the whole "
                "shape of an example.",
                function="build_model",
            )
        return [size or 0 for size in sizes], tensor.dtype

    def _name_maker(self, number: int) -> str:
        """Name the node or the input that a tensor comes from."""
        model = self._partition.model
        makers = (node.name for node in model.nodes if number in node.outputs)
        return next(makers, f"The input {dict(enumerate(model.input_names)).get(number, number)}")

    def _shape(self, examples: int, number: int) -> tuple[int | None, ...]:
        """The shape of this rank's part of a tensor."""
        full = self._partition.model.tensors[number].sized(examples)
        return self._partition.plan.layouts[number].local(full, self.rank.coordinates)

    def work(self, action: schedule.Action) -> None:
        """Make the forward pass of a microbatch."""
        with self.ordering.compute(begins_action=True) as results:
            results += self._forward(action).tensors

    @property
    def effects(self) -> step_effects.Effects:
        """The effects of a step on the whole model."""
        return self._partition.effects

    @property
    def nodes(self) -> tuple[graph.Node, ...]:
        """The nodes of the whole model."""
        return self._partition.model.nodes

    def _received(self, action: schedule.Action) -> dict[cutting.Transfer, tf.Tensor]:
        """The tensors that other stages have sent for an action."""
        microbatch = action.microbatch
        return {
            transfer: self._messages.pop(
                (transfer, programs.Message(action.work, transfer.tensor, microbatch))
            )
            for transfer in self.rank.stage.received
        }

    def _sizes_of_microbatches(self, counts: Sequence[int]) -> list[tuple[int, ...]]:
        """Keys of the microbatches, as `sizes` has them.

        If layers add up over the data axis, a key has the sizes at all places. So all places trace
        equally many functions, in the same order, and call them for the same microbatches.
        """
        if not self._partition.adds_up:
            return [(len(rows),) for rows in self._rows]
        places = [
            map(len, order.split(share, count))
            for share, count in zip(self._workload.shares, counts, strict=True)
            if share
        ]
        return list(zip(*places, strict=True))

    def _divide_batch(self) -> Microbatches:
        rank, workload = self.rank, self._workload
        if not self.examples:
            return Microbatches({}, [], tf.zeros((0,), tf.int64))
        x, y, weight = workload.parts[rank.data]
        inputs = interpreter.by_number(self._partition.model, x) if rank.stage.inputs else {}
        examples = {
            "inputs": {number: inputs[number] for number in rank.stage.inputs},
            "targets": (y, weight) if rank.is_last else (),
        }
        return Microbatches(examples, self._rows, self._draws())

    def _draws(self) -> tf.Tensor:
        """A number for each microbatch, unique in a run: int64 [microbatches]."""
        count, step = len(self._rows), self._workload.step
        if self._workload.draws_alike or not self.rank.seeds:
            return tf.fill((count,), step)
        turns = step * self._partition.microbatches + tf.range(count, dtype=tf.int64)
        return turns * self._partition.mesh.data + self.rank.data

    def _forward(self, action: schedule.Action) -> ForwardResult:
        """Run a forward pass."""
        work, arguments = self._prepare(action)
        compute = functools.partial(self._compute, work, arguments)
        computation = self._functions.call(action.microbatch, compute, nest.leaves(arguments))
        return self._take(action.microbatch, work, computation)

    def _prepare(self, action: schedule.Action) -> tuple[StageWork, Arguments]:
        """The work of a forward pass, and its arguments."""
        microbatch = action.microbatch
        arguments = {
            **self._microbatches.arguments(microbatch, self._iteration),
            "received": list(self._received(action).values()),
            "values": dict(self.values),
        }
        work = StageWork(len(self._rows[microbatch]))
        return self._works.setdefault(self.sizes[microbatch], work), arguments

    def _take(
        self, microbatch: int, work: StageWork, computation: microbatch_function.Computation
    ) -> ForwardResult:
        """Store what other stages receive, and count the loss."""
        results = iter(computation.results)
        sent = {number: next(results) for number in self._sent}
        terms = [(term, loss.Fraction(next(results), next(results))) for term in work.terms]
        for transfer in self.rank.stage.sent:
            message = programs.Message(schedule.Pass.FORWARD, transfer.tensor, microbatch)
            self._messages[transfer, message] = sent[transfer.tensor]
        for term, fraction in terms:
            if not self._counts(term, work.examples):
                continue
            index = self.rank.head.terms.index(term)
            self.numerators[index] += tf.cast(fraction.numerator, tf.float64)
            if term.output:
                self.denominators[index] += fraction.denominator
        return ForwardResult(
            work=work,
            sent=sent,
            terms=terms,
            changed={key: next(results) for key in work.changed},
            pullback=computation.pullback,
        )

    def _compute(
        self, work: StageWork, template: Arguments, tensors: Sequence[tf.Tensor]
    ) -> microbatch_function.Computation:
        """Compute a microbatch from the tensors of its arguments."""
        self.rank.clock.bind()
        arguments = nest.packed(template, tensors)
        (segment,) = segments.divide(self.rank.stage)
        part, terms = self._run_segment(
            work, segment, arguments, self._tensors(arguments), self._variables(arguments)
        )
        return microbatch_function.Computation(self._results(work, part.tensors, terms, {}))

    def _results(
        self,
        work: StageWork,
        tensors: Mapping[int, Any],
        terms: Sequence[Counted],
        changed: Mapping[str, tf.Tensor],
    ) -> list[tf.Tensor]:
        """All results of a forward pass, in the order in which `_take` reads them."""
        self._check_sent(work.examples, tensors)
        work.terms = [term for term, _ in terms]
        work.changed = list(changed)
        fractions = [
            tensor for _, fraction in terms for tensor in (fraction.numerator, fraction.denominator)
        ]
        sent = [tensors[number] for number in self._sent]
        return [*sent, *fractions, *changed.values()]

    @property
    def _sent(self) -> list[int]:
        """The numbers of the tensors that other stages receive."""
        return list(dict.fromkeys(transfer.tensor for transfer in self.rank.stage.sent))

    def _tensors(self, arguments: Arguments) -> dict[int, Any]:
        """The tensors that the stage takes, by number."""
        received = zip(self.rank.stage.received, arguments["received"], strict=True)
        return {
            **arguments["inputs"],
            **{transfer.tensor: tensor for transfer, tensor in received},
        }

    def _variables(self, arguments: Arguments) -> dict[str, Any]:
        """The weights of the stage, and its seeds for a microbatch, by key."""
        return {**arguments["values"], **self._seeds(arguments["draw"])}

    def _run_segment(
        self,
        work: StageWork,
        segment: segments.Segment,
        arguments: Arguments,
        computed: Mapping[int, Any],
        variables: Mapping[str, Any],
        *,
        counts_metrics: bool = True,
    ) -> tuple[interpreter.Part, list[Counted]]:
        """Run a segment, and return its terms of the loss, too.

        Args:
            computed: tensors of the stage, by number; the segment takes some of them.
            variables: the weights and seeds, by key, as earlier segments have left them.
            counts_metrics: whether metrics count the examples.
        """
        tensors = {number: computed[number] for number in segment.inputs}
        part = self._run(segment, tensors, variables)
        return part, self._terms(work, segment, arguments, part, counts_metrics=counts_metrics)

    def _run(
        self,
        segment: segments.Segment,
        tensors: Mapping[int, Any],
        variables: Mapping[str, Any],
    ) -> interpreter.Part:
        """Run a segment on what it takes."""
        nodes, model, data = segment.nodes, self._partition.model, self.rank.head.data
        layers = synchrony.among(node.calls for node in nodes)
        adds_up = self._training and layers and data.size > 1
        with synchrony.ReplicaContext(data) if adds_up else contextlib.nullcontext():
            if not self.rank.groups:
                return interpreter.run_nodes(model, nodes, tensors, variables, self._training)
            of_loss = model.output_tensors() if segment.is_last and self.rank.is_last else ()
            return sharded.run_nodes(
                self._partition.plan,
                nodes,
                tensors,
                variables,
                self._training,
                self.rank.groups,
                leaving=dict.fromkeys([*segment.outputs, *of_loss]),
                constant=self.effects.constant_tensors,
                same_dropout=self._partition.same_dropout,
            )

    def _check_sent(self, examples: int, tensors: Mapping[int, Any]) -> None:
        """Refuse tensors for other stages whose shape differs from the recorded one."""
        for number in self._sent:
            node = next(node for node in self.rank.stage.nodes if number in node.outputs)
            shape = self._shape(examples, number)
            interpreter.check_shape(self._partition.model, node, tensors[number], shape)

    def _terms(
        self,
        work: StageWork,
        segment: segments.Segment,
        arguments: Arguments,
        part: interpreter.Part,
        *,
        counts_metrics: bool,
    ) -> list[Counted]:
        """Return a segment's terms of the loss over a microbatch; updates the metrics."""
        terms: list[Counted] = []
        if segment.is_last and self.rank.is_last:
            fractions = self._of_outputs(
                work.examples, arguments["targets"], part, counts_metrics=counts_metrics
            )
            terms += zip(self.rank.head.terms, fractions, strict=False)
        if part.added_losses:
            kind = keras.config.floatx()
            total = tf.add_n(
                [tf.cast(tf.reduce_sum(added_loss), kind) for added_loss in part.added_losses]
            )
            fraction = loss.Fraction(total * work.examples, tf.constant(work.examples, tf.float64))
            terms.append((self.rank.head.terms[-1], fraction))
        return terms

    def _of_outputs(
        self, examples: int, targets: Any, part: interpreter.Part, *, counts_metrics: bool
    ) -> list[loss.Fraction]:
        compiled_head, model = self.rank.head, self._partition.model
        tensors = {number: part.tensors[number] for number in model.output_tensors()}
        cut = self.rank.loss_cut(examples)
        if self.rank.groups:
            tensors = sharded.outputs(
                self._partition.plan,
                tensors,
                self.rank.groups,
                cut,
                self.effects.constant_tensors,
            )
        if cut is not None:
            rows = cut.rows(self.rank.coordinates[cut.axis])
            targets = nest.convert(lambda leaf: leaf[rows], targets)
        y, weight = targets
        masked = {
            output.tensor: interpreter.marked(tensors[output.tensor], tensors[output.mask])
            for output in model.outputs
            if output.mask is not None
        }
        y_pred = interpreter.outputs_of(model, {**tensors, **masked})
        if counts_metrics and (self.rank.is_first or cut is not None):
            compiled_head.model.compute_metrics(None, y, y_pred, weight)
        return loss.fractions(compiled_head.terms, compiled_head.outputs, y, y_pred, weight)

    def _counts(self, term: loss.Term, examples: int) -> bool:
        """Whether the rank counts a term of a microbatch: of ranks that compute the same, one."""
        divided = bool(term.output) and self.rank.loss_cut(examples) is not None
        return self.rank.is_first or divided

    def _seeds(self, draw: tf.Tensor) -> dict[str, tf.Tensor]:
        """Seeds of a step, microbatch and place along the data axis."""
        borrowed = dict(self.rank.stage.borrowed)
        return {
            key: tf.stack(
                [
                    tf.constant(first[0]) + tf.cast(draw, first.dtype),
                    tf.constant(first[1] + (_BORROWED if key in borrowed else 0), first.dtype),
                ]
            )
            for key, first in self.rank.seeds.items()
        }


def join_terms(terms: Iterable[Counted]) -> list[Counted]:
    """The terms of a stage from those of its segments, of which several may add to the loss."""
    joined: dict[str, Counted] = {}
    for term, fraction in terms:
        _, earlier = joined.get(term.output, (term, None))
        if earlier is not None:
            fraction = dataclasses.replace(
                fraction, numerator=earlier.numerator + fraction.numerator
            )
        joined[term.output] = term, fraction
    return list(joined.values())
