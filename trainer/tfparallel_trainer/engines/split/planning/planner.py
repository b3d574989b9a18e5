"""From a model or a question about one, and devices, to what is planned and its plan."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import slots
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import plan
from tfparallel_trainer.contract.device_types import DEVICE_TYPES
from tfparallel_trainer.engines.split.layers import assignment, elementwise, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph, skeleton
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.engines.split.planning import (
    calibrate,
    choose,
    costs,
    hardware,
    links,
    model_costs,
    search_space,
)
from tfparallel_trainer.engines.split.planning.costs import NodeTime, Sharding, ShardingsOf, Subject

_IN_TURN = (keras.optimizers.Adafactor, keras.optimizers.Muon)
"""They compute norms and products of a weight's gradient, which come one after the other."""


def answer(question: plan.Question) -> plan.Plan:
    """Plan the model of a question; raises as the user's functions, `subject` and `choose` do."""
    module = user.load(pathlib.Path(question.folder), question.module)
    try:
        return _answer(module, question)
    except errors.UserCodeError as error:
        module.locate(error)
        raise


def _answer(module: user.Module, question: plan.Question) -> plan.Plan:
    model = skeleton.build(module, question.seed)
    recorded = skeleton.recorded(module, model)
    # Not before: Keras cannot clone a compiled model without weights.
    skeleton.compile_model(module, model)
    if question.shard_optimizer:
        elementwise.check_state_sharding(model.optimizer)
    cluster = _cluster(question)
    measured = None
    if question.calibrate:
        microbatch = max(1, question.batch // (cluster.size * (question.microbatches or 1)))
        measured = calibrate.measure(recorded, microbatch, question.length)
        updated = dataclasses.replace(
            cluster.device, update=calibrate.update(model.optimizer, recorded)
        )
        cluster = dataclasses.replace(cluster, device=updated)
        if cluster.size > 1:
            cluster = links.measure(cluster)
    planned = subject(recorded, model.optimizer, cluster, question.length, measured)
    constraints = search_space.Constraints(
        mesh=question.mesh,
        microbatches=question.microbatches,
        order=question.schedule,
        batch=question.batch,
        shards_optimizer=question.shard_optimizer,
        recomputes=question.recompute,
    )
    return choose.plan_for(planned, constraints)


def _cluster(question: plan.Question) -> hardware.DeviceCluster:
    if question.device_type is None:
        device = hardware.Device(memory=question.memory)
        return hardware.DeviceCluster(
            processes=question.processes, devices=question.devices, device=device
        )
    device_type = DEVICE_TYPES[question.device_type]
    return hardware.DeviceCluster.of_type(
        question.processes, question.devices, device_type, question.memory
    )


def subject(
    model: graph.Graph,
    optimizer: Any,
    cluster: hardware.DeviceCluster,
    length: int | None = None,
    measured: Sequence[NodeTime] | None = None,
) -> Subject:
    """Collect what the planner needs; raises as `model_costs.estimate_costs` and `slots.of` do.

    Args:
        optimizer: the one that the user compiled it with; None: nothing of it is counted.
        length: value for dimensions that are unknown until data is loaded.
        measured: the times of the nodes; absent: they are estimated.
    """
    state_bytes, fixed = (
        ({}, 0) if optimizer is None else optimizer_state(optimizer, model.variables)
    )
    model_costs_known = model_costs.estimate_costs(
        model, state_bytes, fixed, length, optimizer_copies(optimizer)
    )
    return Subject(
        model=model,
        costs=model_costs_known,
        times=measured
        or [costs.estimated(node_costs, cluster.device) for node_costs in model_costs_known.nodes],
        cluster=cluster,
        shardings_of=shardings_of(model, optimizer),
        measured=measured is not None,
        shares_slots=any(state_bytes.values()) and elementwise.is_elementwise(optimizer),
    )


def optimizer_state(optimizer: Any, variables: Mapping[str, Any]) -> tuple[dict[str, int], int]:
    """Count the bytes of an optimizer like this: by trained variable, and those of none."""
    trained = {key: variable for key, variable in variables.items() if variable.trainable}
    by_name = isinstance(optimizer, keras.optimizers.Muon)  # it goes by the names of weights
    kinds = {
        key: (len(variable.shape), variable.dtype, variable.path if by_name else "")
        for key, variable in trained.items()
    }
    like = {kind: key for key, kind in kinds.items()}
    fixed = 0
    slots_like: dict[str, list[slots.Slot]] = {key: [] for key in like.values()}
    for slot in slots.find_slots(optimizer, {key: trained[key] for key in slots_like}):
        if slot.weight is None:
            fixed += graph.itemsize(slot.dtype)
        else:
            slots_like[slot.weight].append(slot)
    return {
        key: sum(
            math.prod(variable.shape[axis] for axis in slot.axes) * graph.itemsize(slot.dtype)
            for slot in slots_like[like[kinds[key]]]
        )
        for key, variable in trained.items()
    }, fixed


def optimizer_copies(optimizer: Any) -> float:
    """How many times the gradients are there besides, while an optimizer with slots updates.

    TensorFlow begins with the slots of all weights before it ends with those of the first. A
    gradient stays until its last slot is done. Measured on CPU for each of Keras' optimizers.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return 0.0 if isinstance(inner, _IN_TURN) else 1.0


def shardings_of(model: graph.Graph, optimizer: Any = None) -> ShardingsOf:
    """Give the ways of a model's nodes on any mesh.

    They raise where a degree would divide nothing, where a layer cannot be split as the user chose,
    and where the optimizer cannot train parts.
    """

    def on(mesh: shape.MeshShape) -> Sequence[Sharding]:
        degrees = {axis: mesh.degree(axis) for axis in layout.AXES}
        if not model.sharding_overrides and all(degree == 1 for degree in degrees.values()):
            return [costs.REPLICATED] * len(model.nodes)
        assigned = assignment.assign(model, degrees)
        assigned.check()
        if optimizer is not None:
            elementwise.check_optimizer(optimizer, model.variables, assigned.variables)
        return [_sharding(assigned, choice) for choice in assigned.choices]

    return on


def _sharding(assigned: assignment.Assignment, choice: assignment.Choice) -> Sharding:
    model, degrees = assigned.model, assigned.degrees
    variables = [shard.layout for shard in choice.split.variables.values()]
    divided = [tensor_layout.axes for tensor_layout in (*choice.split.gives.values(), *variables)]
    if choice.sharding == registry.REPLICATED and not choice.costs:
        return costs.REPLICATED
    return Sharding(
        name=choice.sharding,
        compute=math.prod(1 / degrees.get(axis, 1) for axis in set[shape.Axis]().union(*divided)),
        kept=max(
            (
                _share(tensor_layout, model.tensors[number].shape)
                for number, tensor_layout in choice.split.gives.items()
            ),
            default=1.0,
        ),
        variables={
            key: _share(assigned.variables[key].layout, model.variables[key].shape)
            for key in choice.node.variables
            if not assigned.variables[key].layout.is_whole
        },
        forward=_sent(choice, schedule.Pass.FORWARD, degrees),
        backward=_sent(choice, schedule.Pass.BACKWARD, degrees),
    )


def _share(tensor_layout: layout.Layout, dims: Sequence[int | None]) -> float:
    """The share of the rank that has most."""
    parts = zip(tensor_layout.largest(dims), dims, strict=True)
    return math.prod((part or 1) / (size or 1) for part, size in parts)


def _sent(
    choice: assignment.Choice, work: schedule.Pass, degrees: Mapping[shape.Axis, int]
) -> tuple[int, float]:
    """How many messages a rank sends, and the bytes of an example in them."""
    transfers = [
        (traffic, degrees.get(traffic.axis, 1)) for traffic in choice.costs if traffic.work is work
    ]
    messages = sum(traffic.messages(ranks) for traffic, ranks in transfers)
    return messages, sum(traffic.sent(1, ranks) for traffic, ranks in transfers)
