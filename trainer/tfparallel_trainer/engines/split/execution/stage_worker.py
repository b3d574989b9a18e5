"""Executes the forward passes of one rank's stage, in order."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import nest, order
from tfparallel_trainer.engines.split.execution import rank_model
from tfparallel_trainer.engines.split.execution.ordering import OrderingScope
from tfparallel_trainer.engines.split.layers import sharded
from tfparallel_trainer.engines.split.model import graph, interpreter, step_effects
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule
from tfparallel_trainer.engines.split.pipeline.partition import Partition
from tfparallel_trainer.objective import loss, synchrony

_BORROWED = 1 << 16
"""Keeps the seeds of a random layer apart that two stages call."""

Address = tuple[cutting.Transfer, programs.Message]
"""Identifies a message among all those of a rank."""

Shares = tuple[int, ...]
"""How many examples each place along the data axis has."""

Counted = tuple[loss.Term, loss.Fraction]
"""A term of the loss over some examples."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What ranks work on."""

    shares: Shares
    """Known when the program is traced."""
    parts: Mapping[int, Any]
    """(x, y, sample_weight) by place along the data axis, of those that have examples here."""
    step: tf.Tensor
    """Number of the step: a scalar int64."""
    draws_alike: bool = False
    """Whether all places and microbatches draw the same numbers, for a check."""


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
        """How many it works on."""
        self._part: Any = workload.parts.get(rank.data)
        count = partition.counts(workload.shares)[rank.data]
        self._rows = order.split(self.examples, count) if self.examples else []
        self._messages: dict[Address, tf.Tensor] = {}
        self._outgoing: dict[tuple[int, int], tf.Tensor] = {}
        """Tensors that are sent forward, by microbatch and number."""
        with tf.device(rank.device):
            self.values = {
                key: tf.convert_to_tensor(variable) for key, variable in rank.weights.items()
            }
            self._inputs = (
                interpreter.by_number(partition.model, workload.parts[rank.data][0])
                if self.examples and rank.stage.inputs
                else {}
            )
        self.numerators = [tf.zeros((), tf.float64) for _ in rank.head.terms]
        of_examples = float(self.examples if rank.is_last else 0)
        self.denominators = [*self.numerators[1:], tf.constant(of_examples, tf.float64)]

    def find_outgoing(self, address: Address) -> tf.Tensor:
        """Return the tensor that a message sends."""
        _, message = address
        if message.work is schedule.Pass.BACKWARD:
            return self._messages.pop(address)
        return self._outgoing[message.microbatch, message.tensor]

    def store_incoming(self, address: Address, tensor: tf.Tensor) -> None:
        """Keep the tensor of a received message for the action that needs it."""
        self._messages[address] = tensor

    def shape_of(self, address: Address) -> tuple[list[int], str]:
        """Shape and type of the tensor that a message brings."""
        _, message = address
        tensor = self._partition.model.tensors[message.tensor]
        sizes = self._sizes(message.microbatch, message.tensor)
        if None in sizes:
            raise errors.UserCodeError(
                f"{self._name_maker(message.tensor)} gives a tensor of the shape {tensor.shape} to "
                "another stage, whose size only the data would tell. Give keras.Input the whole "
                "shape of an example.",
                function="build_model",
            )
        return [size or 0 for size in sizes], tensor.dtype

    def _name_maker(self, number: int) -> str:
        """Name the node that gives a tensor, or the input that it is."""
        model = self._partition.model
        makers = (node.name for node in model.nodes if number in node.outputs)
        return next(makers, f"The input {dict(enumerate(model.input_names)).get(number, number)}")

    def _sizes(self, microbatch: int, number: int) -> tuple[int | None, ...]:
        """The shape of this rank's part of a tensor."""
        full = self._partition.model.tensors[number].sized(len(self._rows[microbatch]))
        return self._partition.plan.layouts[number].local(full, self.rank.coordinates)

    def work(self, action: schedule.Action) -> None:
        """Make the forward pass of a microbatch."""
        with self.ordering.compute(begins_action=True) as results:
            part = self._run(action.microbatch, self._received(action))
            numerators = [
                fraction.numerator for _, fraction in self._terms(action.microbatch, part)
            ]
            results += [*self._keep(action.microbatch, part), *numerators]

    @property
    def effects(self) -> step_effects.Effects:
        """What a step does to the whole model."""
        return self._partition.effects

    @property
    def nodes(self) -> tuple[graph.Node, ...]:
        """Those of the whole model."""
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

    def _run(self, microbatch: int, received: Mapping[cutting.Transfer, Any]) -> interpreter.Part:
        rows = self._rows[microbatch]
        inputs = {
            number: self._inputs[number][rows.start : rows.stop]
            for number in self.rank.stage.inputs
        }
        tensors = {**inputs, **{transfer.tensor: tensor for transfer, tensor in received.items()}}
        variables = {**self.values, **self._seeds(microbatch)}
        nodes, model, data = self.rank.stage.nodes, self._partition.model, self.rank.head.data
        layers = synchrony.among(node.calls for node in nodes)
        adds_up = self._training and layers and data.size > 1
        with synchrony.ReplicaContext(data) if adds_up else contextlib.nullcontext():
            if not self.rank.groups:
                return interpreter.run_nodes(model, nodes, tensors, variables, self._training)
            outputs = model.output_tensors() if self.rank.is_last else ()
            return sharded.run_nodes(
                self._partition.plan,
                nodes,
                tensors,
                variables,
                self._training,
                self.rank.groups,
                leaving=dict.fromkeys(
                    [*(transfer.tensor for transfer in self.rank.stage.sent), *outputs]
                ),
                constant=self.effects.constant_tensors,
                same_dropout=self._partition.same_dropout,
            )

    def _keep(self, microbatch: int, part: interpreter.Part) -> list[Any]:
        """Keep the tensors that other stages receive, and return them."""
        sent = {transfer.tensor: part.tensors[transfer.tensor] for transfer in self.rank.stage.sent}
        for number, tensor in sent.items():
            node = next(node for node in self.rank.stage.nodes if number in node.outputs)
            interpreter.check_shape(
                self._partition.model, node, tensor, self._sizes(microbatch, number)
            )
            self._outgoing[microbatch, number] = tensor
        return list(sent.values())

    def _terms(self, microbatch: int, part: interpreter.Part) -> list[Counted]:
        """The terms of the loss that this stage computes over a microbatch; feeds the metrics."""
        examples = len(self._rows[microbatch])
        terms: list[Counted] = []
        if self.rank.is_last:
            terms += zip(self.rank.head.terms, self._of_outputs(microbatch, part), strict=False)
        if part.added_losses:
            kind = keras.config.floatx()
            total = tf.add_n(
                [tf.cast(tf.reduce_sum(added_loss), kind) for added_loss in part.added_losses]
            )
            fraction = loss.Fraction(total * examples, tf.constant(examples, tf.float64))
            terms.append((self.rank.head.terms[-1], fraction))
        for term, one in terms:
            term_index = self.rank.head.terms.index(term)
            self.numerators[term_index] += tf.cast(one.numerator, tf.float64)
            if term.output:
                self.denominators[term_index] += one.denominator
        return terms

    def _of_outputs(self, microbatch: int, part: interpreter.Part) -> list[loss.Fraction]:
        compiled_head, model = self.rank.head, self._partition.model
        rows = self._rows[microbatch]
        _, y, weight = nest.convert(lambda leaf: leaf[rows.start : rows.stop], self._part)
        tensors = {
            number: sharded.unsharded(
                self._partition.plan, number, part.tensors[number], self.rank.groups
            )
            for number in model.output_tensors()
        }
        masked = {
            output.tensor: interpreter.marked(tensors[output.tensor], tensors[output.mask])
            for output in model.outputs
            if output.mask is not None
        }
        y_pred = interpreter.outputs_of(model, {**tensors, **masked})
        compiled_head.model.compute_metrics(None, y, y_pred, weight)
        return loss.fractions(compiled_head.terms, compiled_head.outputs, y, y_pred, weight)

    def _seeds(self, microbatch: int) -> dict[str, tf.Tensor]:
        """Seeds of this step, microbatch and place along the data axis."""
        turn = self._workload.step * self._partition.microbatches + microbatch
        draw_number = turn * self._partition.mesh.data + self.rank.data
        if self._workload.draws_alike:
            draw_number = self._workload.step
        borrowed = dict(self.rank.stage.borrowed)
        return {
            key: tf.stack(
                [
                    tf.constant(first[0]) + tf.cast(draw_number, first.dtype),
                    tf.constant(first[1] + (_BORROWED if key in borrowed else 0), first.dtype),
                ]
            )
            for key, first in self.rank.seeds.items()
        }
