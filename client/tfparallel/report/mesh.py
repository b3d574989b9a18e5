"""The devices of a run and their places on its mesh, as far as the run or its job says. Pure."""

import math
from collections.abc import Sequence

from tfparallel.planning import devices
from tfparallel.report import run_records
from tfparallel_operator.api import load, types
from tfparallel_operator.core.layout import Layout
from tfparallel_trainer.contract import plan

_DATA_PARALLEL = (types.Strategy.MIRRORED, types.Strategy.MULTI_WORKER_MIRRORED)


def find(run: run_records.RunRecords) -> devices.Devices | None:
    """Return the devices of a run; None where they form no mesh, or nobody knows which."""
    layout, planned = run.job.layout, None if run.stages is None else run.stages.planned
    if layout is None:
        return None
    replicas = [replica.name for replica in layout.training]
    nodes = {pod.replica: pod.node for pod in run.pods}
    pods = {
        number: f"{name}\n{nodes[name]}" if nodes.get(name) else name
        for number, name in enumerate(replicas)
    }
    if planned is not None:
        return devices.Devices.of_plan(planned, pods)
    mesh = _mesh(run, layout)
    size = 0 if mesh is None else math.prod(mesh.model_dump().values())
    if mesh is None or size % len(replicas):
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


def _mesh(run: run_records.RunRecords, layout: Layout) -> plan.Axes | None:
    placement = run.job.status.placement
    if placement is not None:
        return plan.Axes(**placement.mesh.axes)
    if run.job.status.strategy not in _DATA_PARALLEL:
        return None
    try:
        counts = [load.devices_of(layout.specs[replica.role]) for replica in layout.training]
    except load.SpecError:
        return None  # another version wrote what this one cannot read
    return plan.Axes(data=sum(counts))


def _stages(run: run_records.RunRecords) -> Sequence[str]:
    placement = run.job.status.placement
    if placement is None or len(placement.stages) < placement.mesh.stage:
        return ()
    return [f"{stage.layers} ({stage.layer_count})" for stage in placement.stages]
