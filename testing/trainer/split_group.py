"""Runs a model split over virtual ranks, and the same model unsplit, and compares everything."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from testing.trainer import logical_devices, split_models, split_traffic
from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.engines.split.layers import assignment, layout, sharded
from tfparallel_trainer.engines.split.model import graph, interpreter, recording
from tfparallel_trainer.engines.split.planning import (
    costs,
    hardware,
    model_costs,
    sharding_search,
    shardings,
)
from tfparallel_trainer.objective import replica

DEVICES = logical_devices.NAMES
_keys = itertools.count(1 << 30, 1 << 10)
"""Group keys beyond those of meshes, with room for pairs; TensorFlow remembers the shapes that a
key has seen."""


class Counting(collectives.Communicator):
    """Notes the bytes that a rank brings to each operation while it is traced."""

    has_fast_pairs = False
    """An assignment counts what an all-to-all brings; pairs do not send what a rank keeps."""

    def __init__(self, key: int, size: int, index: int, device: str) -> None:
        super().__init__(key, size, index, device)
        self.brought: list[int] = []

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return super().sum(self._noted(tensor))

    def gather(self, tensor: tf.Tensor) -> tf.Tensor:
        return super().gather(self._noted(tensor))

    def all_to_all(self, tensor: tf.Tensor) -> tf.Tensor:
        return super().all_to_all(self._noted(tensor))

    def send_receive(
        self,
        routes: Sequence[tuple[int, int]],
        tensors: Mapping[int, tf.Tensor],
        shapes: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> tuple[dict[int, tf.Tensor], list[tf.Operation]]:
        noted = {index: self._noted(tensor) for index, tensor in tensors.items()}
        return super().send_receive(routes, noted, shapes, dtype)

    def _noted(self, tensor: tf.Tensor) -> tf.Tensor:
        self.brought.append(tensor.shape.num_elements() * tensor.dtype.size)
        return tensor


@dataclasses.dataclass(frozen=True)
class Rank:
    coordinates: dict[shape.Axis, int]
    device: str
    groups: dict[shape.Axis, Counting]

    def brought(self) -> int:
        return sum(sum(group.brought) for group in self.groups.values())


def ranks(degrees: Mapping[shape.Axis, int]) -> list[Rank]:
    """The ranks that split layers, in groups of their own."""
    places = split_traffic.places(degrees)
    keys: dict[Any, int] = {}
    members = []
    for number, coordinates in enumerate(places):
        groups = {}
        for axis in layout.AXES:
            other_axes = (axis, *(coordinates[other] for other in layout.AXES if other is not axis))
            if other_axes not in keys:
                keys[other_axes] = next(_keys)
            size = degrees.get(axis, 1)
            groups[axis] = Counting(keys[other_axes], size, coordinates[axis], DEVICES[number])
        members.append(Rank(coordinates, DEVICES[number], groups))
    return members


def together(members: list[Rank], function: Callable[[Rank], Any]) -> list[Any]:
    """Run a function on all ranks at once."""

    def run() -> list[Any]:
        results = []
        for member in members:
            with tf.device(member.device):
                results.append(function(member))
        return results

    return list(tf.function(run, autograph=False)())


class Source(keras.layers.Layer):
    """Adds a weight to each number of the input: its gradient is that of the output."""

    def call(self, tensor: Any) -> Any:
        return tensor + keras.ops.cast(self.values, tensor.dtype)

    def compute_output_spec(self, tensor: Any) -> Any:
        return keras.KerasTensor(tensor.shape, tensor.dtype)

    def build(self, shape_: Any) -> None:
        self.values = self.add_weight(shape=(EXAMPLES, *shape_[1:]), initializer="zeros")


EXAMPLES = 3

_LENGTH = 16
"""For dimensions that only the data would tell."""


class RankResult(NamedTuple):
    """What a model gives on one rank; gradients by key."""

    outputs: list[Any]
    gradients: dict[str, Any]
    changed: dict[str, Any]


def compare(
    build: Callable[[], Any],
    degrees: Mapping[shape.Axis, int],
    *,
    overrides: Mapping[str, str] | None = None,
    training: bool = False,
    tolerance: float = 1e-10,
    counted: bool = True,
) -> assignment.Assignment:
    """Check that a model gives the same split and unsplit: outputs, gradients, changed variables.

    And that the ranks bring as many bytes to each other as the assignment says.
    """
    replica.forget_names()
    keras.utils.set_random_seed(5)
    model = build()
    model_graph = recording.record(model)
    values = {key: _drawn(variable) for key, variable in model_graph.variables.items()}
    inputs = interpreter.by_number(model_graph, split_models.inputs_of(model, EXAMPLES))
    plan = assign(model_graph, degrees, overrides or {})
    expected = _unsplit(model_graph, inputs, values, training)
    members = ranks(degrees)
    rank_results = together(members, lambda rank: _split(plan, rank, inputs, values, training))
    for member, result in zip(members, rank_results, strict=True):
        _alike(result.outputs, expected.outputs, tolerance)
        assert set(result.changed) == set(expected.changed)
        for key, value in result.changed.items():
            part = plan.variables[key].layout.part(member.coordinates)
            np.testing.assert_allclose(value, expected.changed[key][part], rtol=0, atol=tolerance)
        for key, gradient in expected.gradients.items():
            _check_gradient(
                plan, key, gradient, (member, result), (members, rank_results), tolerance
            )
    if counted:
        total = split_traffic.brought(split_traffic.list_traffic(plan), EXAMPLES)
        assert max(member.brought() for member in members) == total
    return plan


def assign(
    model_graph: graph.Graph,
    degrees: Mapping[shape.Axis, int],
    overrides: Mapping[str, str] | None = None,
) -> assignment.Assignment:
    """Split a model as the planner does on devices of one process; a user has chosen overrides."""
    asked = model_graph
    if overrides is not None:
        asked = dataclasses.replace(model_graph, sharding_overrides=overrides)
    cluster = hardware.DeviceCluster(devices=math.prod(degrees.values()))
    known_costs = model_costs.estimate_costs(asked, {}, length=_LENGTH)
    times = [costs.estimated(node, cluster.device) for node in known_costs.nodes]
    price = shardings.pricing(asked, degrees, times, cluster.inside)
    paths = sharding_search.search(asked, degrees, price)
    cheapest = min(paths, key=lambda path: path.seconds(EXAMPLES))
    return assignment.of_choices(asked, degrees, cheapest.choices())


def _drawn(variable: Any) -> Any:
    """Weights that are nowhere zero by chance of their initialiser; seeds as they are."""
    value = np.array(variable.value)
    if "float" not in variable.dtype:
        return value
    noise = np.random.default_rng(value.size).uniform(0.1, 0.5, value.shape)
    return (value + noise).astype(value.dtype)


def _check_gradient(
    plan: assignment.Assignment,
    key: str,
    whole: Any,
    mine: tuple[Rank, RankResult],
    everyone: tuple[list[Rank], list[RankResult]],
    tolerance: float,
) -> None:
    """Compare the gradient of a part, added up over the ranks that have a summand of it each."""
    member, _ = mine
    shard = plan.variables[key]
    summand = sum(
        np.array(gradient.gradients[key])
        for rank, gradient in zip(*everyone, strict=True)
        if all(
            rank.coordinates[axis] == member.coordinates[axis] or axis in shard.summed
            for axis in rank.coordinates
        )
    )
    expected = whole[shard.layout.part(member.coordinates)]
    largest = max(1.0, float(np.abs(whole).max(initial=0.0)))
    np.testing.assert_allclose(
        summand, expected, rtol=0, atol=tolerance * largest, err_msg=f"gradient of {key}"
    )


def _alike(mine: list[Any], others: list[Any], tolerance: float) -> None:
    for actual, other in zip(mine, others, strict=True):
        np.testing.assert_allclose(actual, other, rtol=0, atol=tolerance)


def _unsplit(
    model_graph: graph.Graph, inputs: dict[int, Any], values: dict[str, Any], training: bool
) -> RankResult:
    def run() -> RankResult:
        variables = _constants(model_graph, values, {})
        with tf.GradientTape() as tape:
            tape.watch(_trained(model_graph, variables))
            part = interpreter.run_nodes(
                model_graph, model_graph.nodes, inputs, variables, training
            )
            outputs = [part.tensors[tensor] for tensor in model_graph.output_tensors()]
            target = _target(outputs)
        return RankResult(outputs, _gradients(model_graph, tape, target, variables), part.changed)

    return tf.function(run, autograph=False)()  # type: ignore[no-any-return]


def _split(
    plan: assignment.Assignment,
    rank: Rank,
    inputs: dict[int, Any],
    values: dict[str, Any],
    training: bool,
) -> RankResult:
    model_graph = plan.model
    variables = _constants(model_graph, values, plan.parts(rank.coordinates))
    tensors = list(dict.fromkeys(model_graph.output_tensors()))
    with tf.GradientTape() as tape:
        tape.watch(_trained(model_graph, variables))
        part = sharded.run_nodes(
            plan,
            model_graph.nodes,
            inputs,
            variables,
            training,
            rank.groups,
            leaving=tensors,
            same_dropout=True,
        )
        whole = sharded.outputs(
            plan, {tensor: part.tensors[tensor] for tensor in tensors}, rank.groups
        )
        outputs = [whole[tensor] for tensor in model_graph.output_tensors()]
        target = _target(outputs)
    return RankResult(outputs, _gradients(model_graph, tape, target, variables), part.changed)


def _constants(
    model_graph: graph.Graph, values: dict[str, Any], parts: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        key: tf.constant(value[parts.get(key, ())], model_graph.variables[key].dtype)
        for key, value in values.items()
    }


def _trained(model_graph: graph.Graph, variables: dict[str, Any]) -> list[Any]:
    return [variable for key, variable in variables.items() if model_graph.variables[key].trainable]


def _gradients(
    model_graph: graph.Graph, tape: tf.GradientTape, target: Any, variables: dict[str, Any]
) -> dict[str, Any]:
    trained = {
        key: variable for key, variable in variables.items() if model_graph.variables[key].trainable
    }
    gradients = tape.gradient(target, trained)
    return {
        key: tf.convert_to_tensor(gradient) if gradient is not None else tf.zeros_like(trained[key])
        for key, gradient in gradients.items()
    }


def _target(outputs: list[Any]) -> Any:
    """A number that depends on each number of the outputs in its own way."""
    total = tf.zeros((), tf.float64)
    for index, output in enumerate(outputs):
        if output.dtype.is_floating:
            weights = np.random.default_rng(index).normal(size=output.shape)
            total += tf.reduce_sum(tf.cast(output, tf.float64) ** 2 * weights)
    return total
