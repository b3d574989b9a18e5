"""The devices of a run and their places on its mesh, as far as the run or its job says. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel.planning import devices
from tfparallel.report import records
from tfparallel_operator.api import load, types
from tfparallel_trainer.contract import plan

_TRAINING = (types.Role.CHIEF, types.Role.MASTER, types.Role.WORKER)
_DATA_PARALLEL = (types.Strategy.MIRRORED, types.Strategy.MULTI_WORKER_MIRRORED)


def find(run: records.Run) -> devices.Devices | None:
    """Return the devices of a run; None where they form no mesh, or nobody knows which."""
    replicas, planned = training_replicas(run), None if run.stages is None else run.stages.planned
    nodes = {pod.replica: pod.node for pod in run.pods}
    pods = {
        number: f"{name}\n{nodes[name]}" if nodes.get(name) else name
        for number, name in enumerate(replicas)
    }
    if planned is not None:
        return devices.Devices.of_plan(planned, pods)
    mesh = _mesh(run)
    size = 0 if mesh is None else math.prod(mesh.model_dump().values())
    if mesh is None or not replicas or size % len(replicas):
        return None
    return devices.Devices(mesh, plan.ranks(mesh, size // len(replicas)), _stages(run), pods)


_PARTS = {
    "data": "the part of each batch that it trains on",
    "stage": "the layers that it holds",
    "spatial": "the part of each image that it computes",
    "tensor": "the part of the weights of its layers that it holds",
}
"""What a place on an axis of the mesh stands for."""


def explain(placed: devices.Devices) -> str:
    """Say in a sentence what the picture of devices shows."""
    parts = [
        f"{axis} ({_PARTS[axis]})"
        for axis, degree in placed.mesh.model_dump().items()
        if degree > 1 and axis in _PARTS
    ]
    if not parts:
        return "Placement: the only box is the device, with its rank, which is its number."
    return (
        "Placement: a box is a device, with its rank, which is its number, and its"
        f" {', '.join(parts)}. The line below says along what devices exchange data within a pod"
        " and between pods."
    )


def training_replicas(run: records.Run) -> Sequence[str]:
    """Return the names of the replicas that train, in the order of their ranks."""
    return [
        f"{role.lower()}-{index}"
        for role, spec in training_roles(run).items()
        for index in range(spec.get("replicas") or 1)
    ]


def training_roles(run: records.Run) -> Mapping[str, Mapping[str, Any]]:
    """Return the specs of the roles that train; the first one coordinates."""
    return {role.value: run.job.roles[role] or {} for role in _TRAINING if role in run.job.roles}


def _mesh(run: records.Run) -> plan.Axes | None:
    placement = run.job.status.placement
    if placement is not None:
        return plan.Axes(**placement.mesh.axes)
    if run.job.status.strategy not in _DATA_PARALLEL:
        return None
    try:
        specs = [*map(types.ReplicaSpec.model_validate, training_roles(run).values())]
        return plan.Axes(data=sum(load.devices_of(spec) * spec.replicas for spec in specs))
    except ValueError:
        return None  # another version wrote what this one cannot read


def _stages(run: records.Run) -> Sequence[str]:
    placement = run.job.status.placement
    if placement is None or len(placement.stages) < placement.mesh.stage:
        return ()
    return [f"{stage.layers} ({stage.layer_count})" for stage in placement.stages]
