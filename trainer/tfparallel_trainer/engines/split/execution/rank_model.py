"""A rank's share of a model: the variables of its stage, its optimizer, its loss and metrics."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import user
from tfparallel_trainer.checkpoint import shard, slots
from tfparallel_trainer.comms import collectives, devices, host_clock, shape
from tfparallel_trainer.engines.split.execution import loss_head, update
from tfparallel_trainer.engines.split.execution.state_sharding import StateSharding, VariableSlice
from tfparallel_trainer.engines.split.layers import elementwise, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import (
    graph,
    initial_values,
    interpreter,
    operations,
    recording,
    variable_identity,
)
from tfparallel_trainer.engines.split.pipeline import cutting
from tfparallel_trainer.engines.split.pipeline.partition import Partition
from tfparallel_trainer.objective import evaluate, gradient_sums, lookups, replica
from tfparallel_trainer.objective.gradient_sums import Exchange, Kind


class Clock:
    """The clock of one rank.

    TensorFlow runs stateful operations without a variable in the order in which they were traced,
    across all ranks of a process. Reading the time is such an operation. It would keep stages of
    one process from working at the same time, and ranks that add up within a layer would deadlock.
    So the clock is read in a function that uses a variable of this rank alone.
    """

    def __init__(self, device: str) -> None:
        """Take the device of the rank; the time is that of its host's CPU."""
        self.processor = devices.cpu_beside(device)
        """The device that reads the clock."""
        with tf.device(self.processor):
            self._moment = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="moment")
        self._read = tf.function(self._now, autograph=False)

    def read(self) -> tf.Tensor:
        """The time at which this operation runs, in seconds: a scalar float64."""
        with tf.device(self.processor):
            return self._read()

    def bind(self) -> None:
        """Let a function that is traced use this rank's variable, for the same reason."""
        with tf.device(self.processor):
            self._moment.read_value()

    def _now(self) -> tf.Tensor:
        with tf.control_dependencies([self._moment.assign(host_clock.read())]):
            return self._moment.read_value()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankModel:
    """A rank that trains a stage; all its variables live on `device`."""

    index: int
    device: str
    coordinates: Mapping[shape.Axis, int]
    stage: cutting.ModelStage
    weights: dict[str, Any]
    """By key, its parts of the weights that its nodes read. Another stage may own some of them."""
    parts: dict[str, shard.Part]
    """Its part of each weight, by key."""
    shards: dict[str, registry.Shard]
    """The layout of each weight over the ranks that split layers, by key."""
    groups: dict[shape.Axis, collectives.Communicator]
    """Its communicators of the groups that split layers; empty if none is split."""
    rows: Mapping[str, frozenset[lookups.Rows]]
    """By the keys of tables, the rows that its nodes look up for any examples."""
    seeds: dict[str, Any]
    """The initial values of the variables of random layers (two integers: seed and counter)."""
    head: replica.Replica
    """The compiled loss and metrics. Only the last stage computes them."""
    loss_axis: shape.Axis | None
    """The axis whose ranks divide examples for the loss, as `loss_head.axis_of_examples` tells."""
    replicas: tuple[int, ...]
    """The communicator of the ranks along the data axis, itself included."""
    state: Mapping[str, StateSharding]
    """By key, the weights of which it updates a slice only, and keeps optimizer state for that
    slice only."""
    updated: Sequence[Any]
    """What its optimizer updates: the trained weights, or its slices of them."""
    optimizer: update.ShardOptimizer
    clock: Clock

    @property
    def data(self) -> int:
        """The index of its share of a batch."""
        return self.coordinates[shape.Axis.DATA]

    @property
    def trained(self) -> dict[str, Any]:
        """The trained weights."""
        return {key: variable for key, variable in self.weights.items() if variable.trainable}

    @property
    def statistics(self) -> dict[str, Any]:
        """The weights that are not trained, such as moving statistics."""
        return {key: variable for key, variable in self.weights.items() if not variable.trainable}

    @property
    def is_last(self) -> bool:
        """Whether it computes the loss."""
        return bool(self.stage.outputs)

    @property
    def reports_metrics(self) -> bool:
        """Whether it reports metrics: of ranks that compute the same ones, one does."""
        return self.is_last and (self.is_first or self.loss_axis is not None)

    @property
    def is_first(self) -> bool:
        """Whether it is the first of the ranks that split the same layers."""
        return not any(self.coordinates[axis] for axis in layout.AXES)

    def loss_cut(self, examples: int) -> layout.Cut | None:
        """How ranks divide the examples of a microbatch for the loss; None: each computes all."""
        if self.loss_axis is None:
            return None
        ranks = self.groups[self.loss_axis].size
        return layout.even(self.loss_axis, examples, ranks) if examples >= ranks else None

    def kind(self, key: str, gradient: Any) -> Kind:
        """The kind of a weight's gradient, from the nodes of this rank."""
        kind = gradient_sums.classify(gradient, self.rows.get(key, ()))
        exchange = Exchange.ROWS if self.optimizer.adds_mentions else Exchange.MENTIONS
        return dataclasses.replace(kind, exchange=exchange)

    def penalty(self) -> float:
        """The regularisation of the weights that it owns."""
        return evaluate.penalty_of(
            variable for key, variable in self.trained.items() if self.owns(key)
        )

    def owns(self, key: str) -> bool:
        """Whether a checkpoint takes its part of a weight from this rank."""
        return self._is_first_copy(key, (shape.Axis.DATA,))

    def owns_state(self, key: str) -> bool:
        """Whether a checkpoint takes its part of a weight's optimizer state from this rank.

        The part is that of `state_part`. The same rank counts its gradient.
        """
        return self._is_first_copy(key, () if key in self.state else (shape.Axis.DATA,))

    def state_part(self, key: str, whole: Sequence[int]) -> shard.Part:
        """The part of a trained weight, of shape `whole`, that it keeps optimizer state for."""
        sharding = self.state.get(key)
        part = self.parts[key]
        return part if sharding is None else sharding.part(part, whole, self.data)

    def own_slice(self, key: str, gradient: Any) -> Any:
        """The part of a gradient that its optimizer applies."""
        sharding = self.state.get(key)
        return gradient if sharding is None else sharding.of_gradient(gradient, self.data)

    def updated_rows(self) -> list[tf.Tensor]:
        """The current values of its slices of weights, as rows for `join_rows`."""
        slices = zip(self.trained, self.updated, strict=True)
        return [self.state[key].pad(part.value) for key, part in slices if key in self.state]

    def join_rows(self, rows: Sequence[tf.Tensor]) -> None:
        """Assign the weights whose slices all ranks have updated: rows [ranks, n]."""
        for (key, sharding), slices in zip(self.state.items(), rows, strict=True):
            self.weights[key].assign(sharding.join(slices))

    def _is_first_copy(self, key: str, others: tuple[shape.Axis, ...]) -> bool:
        """Whether its stage owns a weight, and it is first along the axes that do not divide it."""
        variable_layout = self.shards[key].layout
        whole = [axis for axis in layout.AXES if variable_layout.dimension(axis) is None]
        is_first = not any(self.coordinates[axis] for axis in (*others, *whole))
        return key in self.stage.owned and is_first


def build(
    module: user.Module,
    skeleton: Any,
    partition: Partition,
    index: int,
    device: str,
    sample: Any,
) -> RankModel:
    """Create a rank's variables, with the initial values of the unsplit model."""
    coordinates = partition.mesh.coordinates(index)
    stage = partition.stages[coordinates[shape.Axis.STAGE]]
    data = partition.mesh.group(index, shape.Axis.DATA)
    read = {*stage.owned, *dict(stage.borrowed)}
    parts = partition.plan.parts(coordinates)
    keys = {key: parts[key] for key in partition.model.variables if key in read}
    splits = [partition.mesh.group(index, axis) for axis in layout.AXES]
    with tf.device(device):
        communicator = collectives.Communicator.for_rank(data, index, device)
        # First, because compile_model may set attributes of variables, which the rank's variables
        # need too.
        compiled = loss_head.build(module, skeleton, partition.model, communicator, sample)
        values = dict(initial_values.draw_values(partition.model.variables, keys))
        seeds = {key: values.pop(key) for key in keys if key.startswith(recording.SEED_PREFIX)}
        weights = {
            key: variable_identity.variable_like(partition.model.variables[key], values.pop(key))
            for key in list(values)
        }
        trained = {key: weight for key, weight in weights.items() if weight.trainable}
        variable_identity.translate(compiled.model.optimizer, partition.model.variables, trained)
        state: dict[str, StateSharding] = {}
        if shares_state(partition, compiled.model.optimizer, trained):
            state = _state_shardings(trained, len(data.ranks))
        replica_index = coordinates[shape.Axis.DATA]
        updated = [
            VariableSlice(weight, state[key], replica_index) if key in state else weight
            for key, weight in trained.items()
        ]
        return RankModel(
            index=index,
            device=device,
            coordinates=coordinates,
            stage=stage,
            weights=weights,
            parts={key: keys[key] for key in weights},
            shards={key: partition.plan.variables[key] for key in weights},
            groups={
                group.axis: collectives.Communicator.for_rank(group, index, device)
                for group in splits
                if any(len(splitting_group.ranks) > 1 for splitting_group in splits)
            },
            rows=_table_rows(partition.model, stage.nodes),
            seeds=seeds,
            head=compiled,
            loss_axis=loss_head.axis_of_examples(compiled, partition.plan),
            replicas=data.ranks,
            state=state,
            updated=updated,
            optimizer=update.ShardOptimizer(compiled.model.optimizer, updated),
            clock=Clock(device),
        )


def shares_state(partition: Partition, optimizer: Any, trained: Mapping[str, Any]) -> bool:
    """Whether ranks along the data axis shard an optimizer's state of some weights.

    An optimizer that cannot train slices of them raises a UserCodeError.
    """
    if not partition.shards_optimizer or partition.mesh.data == 1:
        return False
    elementwise.check_state_sharding(optimizer)
    return any(slot.weight is not None for slot in slots.find_slots(optimizer, trained))


def _state_shardings(trained: Mapping[str, Any], ranks: int) -> dict[str, StateSharding]:
    """How the ranks along the data axis divide the updates of weights.

    Each rank updates the others in full.
    """
    shardings = {key: StateSharding.choose(weight, ranks) for key, weight in trained.items()}
    return {key: sharding for key, sharding in shardings.items() if sharding is not None}


def _table_rows(
    model: graph.Graph, nodes: Iterable[graph.Node]
) -> dict[str, frozenset[lookups.Rows]]:
    """Return the rows that nodes look up whatever the examples are, by the keys of tables.

    Ranks trace steps for batches of known size, in which the rows of a batch may be known too. So
    each node that may look rows up is traced alone, for batches of unknown size.
    """
    rows_by_key: dict[str, frozenset[lookups.Rows]] = {}
    for node in nodes:
        # Keras' layers without a table look nothing up.
        if node.variables and (
            operations.runs_code_of_user(node)
            or any(
                isinstance(layer, keras.layers.Embedding) for layer in node.calls._flatten_layers()
            )
        ):
            for key, lookup_rows in _rows_of_node(model, node).items():
                rows_by_key[key] = rows_by_key.get(key, frozenset()) | lookup_rows
    return rows_by_key


def _rows_of_node(model: graph.Graph, node: graph.Node) -> dict[str, frozenset[lookups.Rows]]:
    trained = [key for key in node.variables if model.variables[key].trainable]
    rows_by_key_of_node: dict[str, frozenset[lookups.Rows]] = {}

    def call(tensors: dict[int, Any], variables: dict[str, Any]) -> None:
        with tf.GradientTape() as tape:
            tape.watch([variables[key] for key in trained])
            part = interpreter.run_nodes(model, [node], tensors, variables, training=True)
            outputs = [part.tensors[number] for number in node.outputs]
            targets = [
                target for target in outputs if target is not None and target.dtype.is_floating
            ]
        gradients = tape.gradient(targets, [variables[key] for key in trained])
        for key, gradient in zip(trained, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                sources = lookups.find_lookups(gradient)
                rows_by_key_of_node[key] = frozenset(
                    lookup.rows for lookup in sources if lookup.rows is not None
                )

    tf.function(call, autograph=False).get_concrete_function(*interpreter.specs(model, node))
    return rows_by_key_of_node
