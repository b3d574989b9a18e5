"""Divides models over meshes of one process as the planner does."""

import dataclasses
import itertools

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
    *,
    recomputes: bool = False,
) -> partition.Partition:
    """Cut a model as the planner says for equal devices of one process."""
    job_mesh = job_file.Mesh(
        **{str(axis): mesh.degree(axis) for axis in shape.Axis},
        microbatches=microbatches,
        recompute=recomputes,
    )
    batch = mesh.data * microbatches * _EXAMPLES
    plan = plan_resolution.resolve(
        model, job_mesh, batch, hardware.DeviceCluster(devices=mesh.size)
    )
    divided = partition.divide(
        plan.model, mesh, microbatches, order, plan.ends, shardings=plan.shardings
    )
    return dataclasses.replace(divided, segment_ends=plan.segment_ends)


def ends_of_nodes(model: graph.Graph) -> tuple[int, ...]:
    """The ends of as many segments as there may be: behind each node before the first output."""
    outputs = set(model.output_tensors())
    ends = itertools.takewhile(
        lambda index: outputs.isdisjoint(model.nodes[index].outputs), range(len(model.nodes))
    )
    return tuple(index + 1 for index in ends)
