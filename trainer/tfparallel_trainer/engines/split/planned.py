"""Where a run divides its model: as the job file says, or as the planner chooses."""

import dataclasses
import hashlib
from typing import Any

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import peers
from tfparallel_trainer.contract import job_file, plan
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting
from tfparallel_trainer.engines.split.planning import (
    choose,
    device_memory,
    hardware,
    search_space,
    subjects,
)

_USUAL_LENGTH = 128
"""Stands for dimensions that only the data tells."""

_MOST = (1 << 62) - 1
"""Bytes of a device whose memory nothing limits."""

_DIGITS = 15
"""Of a digest, as many as processes compare."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A mesh and where the stages are cut."""

    mesh: job_file.Mesh
    """Every axis is a number."""
    model: graph.Graph
    """Its nodes are in the order in which stages have them."""
    ends: tuple[int, ...]
    """Behind how many nodes each stage but the last one ends."""
    plan: plan.Plan | None
    """What the planner expects; None where the job file says where to cut."""


def over(
    model: graph.Graph,
    job_mesh: job_file.Mesh,
    batch: int,
    cluster: hardware.Cluster,
    optimizer: Any = None,
) -> Planned:
    """Divide a model over devices.

    Args:
        model: its graph.
        job_mesh: the job's mesh; with every axis a number, or `auto`.
        batch: examples of a step.
        cluster: the devices; their memory is a limit where the planner chooses the mesh.
        optimizer: the one that the user compiled the model with; absent: nothing of it is counted.

    Raises:
        BadConfigurationError: it cannot be divided so; or nothing fits, with what lacks how much.
        UserCodeError: the optimizer cannot train what the mesh divides.
    """
    if job_mesh.cuts:
        ends = tuple(cutting.ends_of_names(model, job_mesh.cuts))
        return Planned(mesh=job_mesh, model=model, ends=ends, plan=None)
    constraints = search_space.Constraints(order=job_mesh.schedule, batch=batch)
    if not job_mesh.auto:
        parts = job_mesh.data * job_mesh.microbatches
        constraints = dataclasses.replace(
            constraints,
            mesh=job_mesh.axes,
            microbatches=job_mesh.microbatches,
            batch=-(-batch // parts) * parts,  # parts may be unequal: the largest counts
        )
    plan = choose.plan_for(subjects.of(model, optimizer, cluster, _USUAL_LENGTH), constraints)
    return Planned(
        mesh=job_file.Mesh(
            **plan.mesh.model_dump(), microbatches=plan.microbatches, schedule=plan.schedule
        ),
        model=dataclasses.replace(model, nodes=tuple(model.nodes[place] for place in plan.order)),
        ends=plan.ends,
        plan=plan,
    )


def devices_of(job_mesh: job_file.Mesh, peers: peers.Peers, count: int) -> hardware.Cluster:
    """The devices of all processes; with `auto`, with the memory of the smallest one.

    Args:
        job_mesh: the job's mesh.
        peers: all processes, each of which makes this call.
        count: devices of each process.
    """
    memory = None
    if job_mesh.auto:
        least = min(peers.gather(device_memory.of_device(count) or _MOST))
        memory = None if least == _MOST else least
    return hardware.Cluster(
        processes=peers.count, devices=count, device=hardware.Device(memory=memory)
    )


def compare(planned: Planned, peers: peers.Peers) -> None:
    """See that all processes have come to the same plan; they would wait for each other otherwise.

    Raises:
        BadConfigurationError: one has not.
    """
    description = repr((planned.mesh, planned.ends, [node.name for node in planned.model.nodes]))
    digest = int(hashlib.sha256(description.encode()).hexdigest()[:_DIGITS], 16)
    for name, other in zip(peers.names, peers.gather(digest), strict=True):
        if other != digest:
            raise errors.BadConfigurationError(
                f"{name} divides the model otherwise than {peers.names[peers.me]}: let "
                "build_model give the same model in all processes, or give the mesh and its cuts."
            )
