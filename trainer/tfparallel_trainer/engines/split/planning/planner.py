"""From a model or a question about one, and devices, to what is planned and its plan."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import slots
from tfparallel_trainer.contract import plan
from tfparallel_trainer.contract.gpu_types import DEVICE_TYPES
from tfparallel_trainer.engines.split.layers import elementwise
from tfparallel_trainer.engines.split.model import graph, skeleton
from tfparallel_trainer.engines.split.planning import (
    calibrate,
    choose,
    costs,
    explain,
    hardware,
    links,
    model_costs,
    search_space,
    shardings,
)
from tfparallel_trainer.engines.split.planning.costs import NodeTime, Subject

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
    planned = subject(
        recorded, model.optimizer, cluster, question.length, measured, loss=model.loss
    )
    constraints = search_space.Constraints(
        mesh=question.mesh,
        microbatches=question.microbatches,
        order=question.schedule,
        batch=question.batch,
        shards_optimizer=question.shard_optimizer,
        recomputes=question.recompute,
    )
    chosen = choose.plan_for(planned, constraints)
    if not question.saves_checkpoints:
        return chosen
    copied = explain.copying(chosen, question.requested_memory)
    return chosen.model_copy(update={"reasons": (*chosen.reasons, copied)})


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
    *,
    loss: Any = None,
) -> Subject:
    """Collect what the planner needs; raises as `model_costs.estimate_costs` and `slots.of` do.

    Args:
        optimizer: the one that the user compiled it with; None: nothing of it is counted.
        length: value for dimensions that are unknown until data is loaded.
        measured: the times of the nodes; absent: they are estimated.
        loss: what the user compiled the model with; None: no labels are counted.
    """
    state_bytes, fixed = (
        ({}, 0) if optimizer is None else optimizer_state(optimizer, model.variables)
    )
    model_costs_known = model_costs.estimate_costs(
        model, state_bytes, fixed, length, optimizer_copies(optimizer), loss
    )
    times = measured or [
        costs.estimated(node_costs, cluster.device) for node_costs in model_costs_known.nodes
    ]
    return Subject(
        model=model,
        costs=model_costs_known,
        times=times,
        cluster=cluster,
        shardings_of=shardings.shardings_of(model, times, cluster, optimizer),
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
