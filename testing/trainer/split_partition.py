"""Divides models over meshes of one process as the planner does."""

from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.engines.split import plan_resolution
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import partition, schedule
from tfparallel_trainer.engines.split.planning import hardware

_EXAMPLES = 32
"""Of a microbatch."""


def divide(
    model: graph.Graph,
    mesh: shape.MeshShape,
    microbatches: int = 1,
    order: schedule.Schedule = schedule.one_forward_one_backward,
) -> partition.Partition:
    """Cut a model as the planner says for equal devices of one process."""
    job_mesh = job_file.Mesh(
        **{str(axis): mesh.degree(axis) for axis in shape.Axis}, microbatches=microbatches
    )
    batch = mesh.data * microbatches * _EXAMPLES
    plan = plan_resolution.resolve(
        model, job_mesh, batch, hardware.DeviceCluster(devices=mesh.size)
    )
    return partition.divide(plan.model, mesh, microbatches, order, plan.ends)
