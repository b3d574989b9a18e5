"""A rank's share of a model: the variables of its stage, its optimizer, its loss and metrics."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import user
from tfparallel_trainer.checkpoint import shard, slots
from tfparallel_trainer.comms import collectives, shape
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
from tfparallel_trainer.objective.gradient_sums import Kind


class Clock:
    """The clock of one rank.

    TensorFlow runs all operations with a state that use no variable in the order in which they were
    traced, those of other ranks among them. Reading the time is one: so stages of one process would
    never work at the same time, and ranks that add up within a layer would wait for each other
    forever. So the time is read in a function that uses a variable, and this rank alone has it.
    """

    def __init__(self, device: str) -> None:
        """Take where the rank lives; the time is that of its processor."""
        processor = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
        self.processor = processor.to_string()
        """Where moments are."""
        with tf.device(self.processor):
            self._moment = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="moment")
        self._read = tf.function(self._now, autograph=False)

    def read(self) -> tf.Tensor:
        """The moment at which this operation runs, in seconds: a scalar float64."""
        with tf.device(self.processor):
            return self._read()

    def bind(self) -> None:
        """Let a function that is traced use this rank's variable, for the same reason."""
        with tf.device(self.processor):
            self._moment.read_value()

    def _now(self) -> tf.Tensor:
        with tf.control_dependencies([self._moment.assign(tf.timestamp())]):
            return self._moment.read_value()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RankModel:
    """A rank that trains a stage; all its variables live on `device`."""

    index: int
    device: str
    coordinates: Mapping[shape.Axis, int]
    stage: cutting.ModelStage
    weights: dict[str, Any]
    """By key: its parts of those that its nodes read; some may be borrowed from another stage."""
    parts: dict[str, shard.Part]
    """Which part of each weight it has, by key."""
    shards: dict[str, registry.Shard]
    """How each of the weights lies on the ranks that split layers, by key."""
    groups: dict[shape.Axis, collectives.Communicator]
    """Its ends of the groups that split layers; empty where none is split."""
    rows: Mapping[str, frozenset[lookups.Rows]]
    """Of tables, by key: rows that its nodes look up whatever the examples are."""
    seeds: dict[str, Any]
    """The first values of the variables of random layers (two integers: seed and counter)."""
    head: replica.Replica
    """The loss and the metrics, for which only the last stage has something."""
    replicas: tuple[int, ...]
    """The ranks along the data axis, itself among them."""
    state: Mapping[str, StateSharding]
    """By key, the weights of which it updates a slice only and keeps no other optimizer state."""
    updated: Sequence[Any]
    """What its optimizer changes: the trained weights, or its slices of them."""
    optimizer: update.ShardOptimizer
    clock: Clock

    @property
    def data(self) -> int:
        """Which share of a batch it works on."""
        return self.coordinates[shape.Axis.DATA]

    @property
    def trained(self) -> dict[str, Any]:
        """Those of the weights that have gradients."""
        return {key: variable for key, variable in self.weights.items() if variable.trainable}

    @property
    def statistics(self) -> dict[str, Any]:
        """Those of the weights that are not trained but gathered, or nothing at all."""
        return {key: variable for key, variable in self.weights.items() if not variable.trainable}

    @property
    def is_last(self) -> bool:
        """Whether it computes the loss."""
        return bool(self.stage.outputs)

    @property
    def reports_loss(self) -> bool:
        """Whether it tells the loss and the metrics: of ranks that compute the same, one does."""
        return self.is_last and self.is_first

    @property
    def is_first(self) -> bool:
        """Whether it is the first of the ranks that split the same layers."""
        return not any(self.coordinates[axis] for axis in layout.AXES)

    def kind(self, key: str, gradient: Any) -> Kind:
        """Of what kind a gradient of a weight is that its nodes lead to."""
        return gradient_sums.classify(gradient, self.rows.get(key, ()))

    def penalty(self) -> float:
        """The regularisation of the weights that it owns."""
        return evaluate.penalty_of(
            variable for key, variable in self.trained.items() if self.owns(key)
        )

    def owns(self, key: str) -> bool:
        """Whether the one copy that counts, of its part of a weight, is this rank's."""
        return self._is_first_copy(key, (shape.Axis.DATA,))

    def owns_state(self, key: str) -> bool:
        """The same of its part of a weight's optimizer state, and of the gradient that changes it.

        `state_part` says which part that is.
        """
        return self._is_first_copy(key, () if key in self.state else (shape.Axis.DATA,))

    def state_part(self, key: str, whole: Sequence[int]) -> shard.Part:
        """Which part of a trained weight it keeps optimizer state for; `whole` is its shape."""
        sharding = self.state.get(key)
        part = self.parts[key]
        return part if sharding is None else sharding.part(part, whole, self.data)

    def own_slice(self, key: str, gradient: Any) -> Any:
        """The part of a gradient that its optimizer takes."""
        sharding = self.state.get(key)
        return gradient if sharding is None else sharding.of_gradient(gradient, self.data)

    def updated_rows(self) -> list[tf.Tensor]:
        """Its slices of weights as they are now, as `join_rows` takes them from all ranks."""
        slices = zip(self.trained, self.updated, strict=True)
        return [self.state[key].pad(part.value) for key, part in slices if key in self.state]

    def join_rows(self, rows: Sequence[tf.Tensor]) -> None:
        """Assign the weights of which other ranks update slices: rows [ranks, n]."""
        for (key, sharding), slices in zip(self.state.items(), rows, strict=True):
            self.weights[key].assign(sharding.join(slices))

    def _is_first_copy(self, key: str, others: tuple[shape.Axis, ...]) -> bool:
        """Whether a weight is its stage's, and it is first along the axes that do not divide it."""
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
    """Create a rank's variables, with the values that those of the unsplit model would have."""
    coordinates = partition.mesh.coordinates(index)
    stage = partition.stages[coordinates[shape.Axis.STAGE]]
    data = partition.mesh.group(index, shape.Axis.DATA)
    read = {*stage.owned, *dict(stage.borrowed)}
    parts = partition.plan.parts(coordinates)
    keys = {key: parts[key] for key in partition.model.variables if key in read}
    splits = [partition.mesh.group(index, axis) for axis in layout.AXES]
    with tf.device(device):
        communicator = collectives.Communicator.for_rank(data, index, device)
        # First, because compile_model may give variables attributes, which a rank's have as well.
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
            replicas=data.ranks,
            state=state,
            updated=updated,
            optimizer=update.ShardOptimizer(compiled.model.optimizer, updated),
            clock=Clock(device),
        )


def shares_state(partition: Partition, optimizer: Any, trained: Mapping[str, Any]) -> bool:
    """Whether ranks along the data axis share the state that an optimizer keeps of some weights.

    One that cannot train slices of them is a UserCodeError.
    """
    if not partition.shards_optimizer or partition.mesh.data == 1:
        return False
    elementwise.check_state_sharding(optimizer)
    return any(slot.weight is not None for slot in slots.find_slots(optimizer, trained))


def _state_shardings(trained: Mapping[str, Any], ranks: int) -> dict[str, StateSharding]:
    """How the ranks along the data axis share the updates of weights; others they all make."""
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
