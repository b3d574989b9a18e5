"""Where a run divides its model: as the job file says, or as the planner chooses."""

import dataclasses
import pathlib
import resource
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import agreement, shape
from tfparallel_trainer.contract import gpu_types, job_file, progress
from tfparallel_trainer.contract.gpu_types import DEVICE_TYPES, DeviceType
from tfparallel_trainer.contract.plan import Plan
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting
from tfparallel_trainer.engines.split.planning import (
    choose,
    explain,
    hardware,
    model_costs,
    planner,
    recomputation,
    search_space,
)

_USUAL_LENGTH = 128
"""Value for dimensions that are unknown until data is loaded."""

_MOST = (1 << 62) - 1
"""Bytes of a device whose memory nothing limits."""

_GROUPS = pathlib.Path("/sys/fs/cgroup")
_PROCESS = pathlib.Path("/proc/self")
_LIMITS = {"VmData": resource.RLIMIT_DATA, "VmSize": resource.RLIMIT_AS}
"""What the kernel counts for a limit of a process."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPlan:
    """A mesh and where the stages are cut."""

    mesh: job_file.Mesh
    """Every axis is a number."""
    model: graph.Graph
    """Its nodes are in the order in which stages have them."""
    ends: tuple[int, ...]
    """Behind how many nodes each stage but the last one ends."""
    shardings: Mapping[str, str]
    """Of the nodes, by name; a node without one is replicated."""
    segment_ends: tuple[int, ...] | None
    """As `partition.Partition` takes them."""
    plan: Plan | None
    """What the planner expects; None where the job file says where to cut."""
    memory: progress.MemoryPlan | None
    """What it expects the fullest device to hold; None if nothing limits it, and without a plan."""


def resolve(
    model: graph.Graph,
    job_mesh: job_file.Mesh,
    batch: int,
    cluster: hardware.DeviceCluster,
    optimizer: Any = None,
    loss: Any = None,
) -> ResolvedPlan:
    """Divide a model over devices.

    Args:
        job_mesh: the job's mesh; with every axis a number, or `auto`.
        cluster: the devices. Their memory is a limit where the planner chooses the mesh. On a mesh
            that the job gives, the cut whose fullest device lacks least is taken if none fits.
        optimizer: the one that the user compiled the model with; absent: nothing of it is counted.
        loss: the same of the loss, whose labels are counted.

    Raises:
        BadConfigurationError: it cannot be divided so; or nothing fits, with what lacks how much.
        UserCodeError: the optimizer cannot train what the mesh divides.
    """
    if job_mesh.cuts:
        ends = tuple(cutting.ends_of_names(model, job_mesh.cuts))
        subject = planner.subject(model, optimizer, cluster, _USUAL_LENGTH)
        mesh = shape.MeshShape(**job_mesh.axes)
        examples = -(-batch // (mesh.data * job_mesh.microbatches))
        node_shardings = subject.shardings_of(mesh, examples)
        return ResolvedPlan(
            mesh=job_mesh,
            model=model,
            ends=ends,
            shardings={
                node.name: sharding.name
                for node, sharding in zip(model.nodes, node_shardings, strict=True)
            },
            segment_ends=_segment_ends(model, recomputes=job_mesh.recompute),
            plan=None,
            memory=None,
        )
    constraints = search_space.Constraints(
        order=job_mesh.schedule,
        batch=batch,
        shards_optimizer=job_mesh.shard_optimizer or (None if job_mesh.auto else False),
        recomputes=job_mesh.recompute or (None if job_mesh.auto else False),
    )
    if not job_mesh.auto:
        parts = job_mesh.data * job_mesh.microbatches
        constraints = dataclasses.replace(
            constraints,
            mesh=job_mesh.axes,
            microbatches=job_mesh.microbatches,
            batch=-(-batch // parts) * parts,  # parts may be unequal: the largest counts
        )
    subject = planner.subject(model, optimizer, cluster, _USUAL_LENGTH, loss=loss)
    try:
        plan = choose.plan_for(subject, constraints)
        memory = None if plan.memory is None else explain.memory_plan(plan, plan.memory)
    except choose.MisfitError as misfit:
        if job_mesh.auto:
            raise
        plan, memory = misfit.roomiest, misfit.memory
    ordered = dataclasses.replace(model, nodes=tuple(model.nodes[index] for index in plan.order))
    return ResolvedPlan(
        mesh=job_file.Mesh(
            **plan.mesh.model_dump(),
            microbatches=plan.microbatches,
            schedule=plan.schedule,
            shard_optimizer=plan.shard_optimizer,
            recompute=plan.recompute,
        ),
        model=ordered,
        ends=plan.ends,
        shardings=plan.shardings,
        segment_ends=_segment_ends(ordered, recomputes=plan.recompute),
        plan=plan,
        memory=memory,
    )


def _segment_ends(model: graph.Graph, *, recomputes: bool) -> tuple[int, ...] | None:
    if not recomputes:
        return None
    return recomputation.segment_ends(
        model, model_costs.estimate_costs(model, {}, length=_USUAL_LENGTH)
    )


def devices_of(peers: agreement.Peers, count: int) -> hardware.DeviceCluster:
    """The devices of all processes, which all ask, with the least memory of one.

    They are GPUs of a type that the planner knows if all processes have the same.
    """
    least = min(peers.gather(device_memory(count) or _MOST))
    memory = None if least == _MOST else least
    known_types = list(DEVICE_TYPES.values())
    own_type = gpu_type()
    own_number = len(known_types) if own_type is None else known_types.index(own_type)
    numbers = set(peers.gather(own_number))
    if numbers == {own_number} and own_type is not None:
        return hardware.DeviceCluster.of_type(peers.count, count, own_type, memory)
    return hardware.DeviceCluster(
        processes=peers.count, devices=count, device=hardware.Device(memory=memory)
    )


def compare(planned: ResolvedPlan, peers: agreement.Peers) -> None:
    """Refuse (BadConfigurationError) a process with another plan: it would wait forever."""
    names = [node.name for node in planned.model.nodes]
    shardings = sorted(planned.shardings.items())
    description = repr((planned.mesh, planned.ends, names, shardings))
    digest = agreement.digest(description)
    for name, other in zip(peers.names, peers.gather(digest), strict=True):
        if other != digest:
            raise errors.BadConfigurationError(
                f"{name} divides the model otherwise than {peers.names[peers.me]}: let "
                "build_model give the same model in all processes, or give the mesh and its cuts."
            )


def gpu_type() -> DeviceType | None:
    """The type of the GPUs of this process, if it is known and they have the same."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    gpu_names = {str(gpu.get("device_name")) for gpu in details}
    return gpu_types.find_by_name(gpu_names.pop()) if len(gpu_names) == 1 else None


def device_memory(count: int) -> int | None:
    """Bytes that each of so many devices may take; None when nothing limits them.

    GPUs have what TensorFlow may take of them. Those of a processor share what the control group
    (v2) and the limits of the process leave besides what it already has.
    """
    if tf.config.list_physical_devices("GPU"):
        from tensorflow.python.client import device_lib  # the public API does not tell it

        devices: Any = device_lib.list_local_devices()
        return min(int(device.memory_limit) for device in devices if device.device_type == "GPU")
    left = list(_left())
    return max(1, min(left) // count) if left else None


def _left() -> Iterator[int]:
    """What each limit leaves of itself."""
    lines = (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines()
    pairs = (line.split() for line in lines if line.startswith("Vm"))
    usage = {name.rstrip(":"): int(kibibytes) * 1024 for name, kibibytes, _ in pairs}
    for folder in _groups():
        try:
            limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        except OSError:  # not of version 2, or its root
            continue
        if limit.isdecimal():
            yield int(limit) - usage["VmRSS"]
    for name, kind in _LIMITS.items():
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield soft - usage[name]


def _groups() -> Iterator[pathlib.Path]:
    """The folders of the control group of this process and of those around it."""
    for line in (_PROCESS / "cgroup").read_text(encoding="utf-8").splitlines():
        if line.startswith("0::/"):
            group = _GROUPS / line.removeprefix("0::/")
            yield group
            yield from (cgroup for cgroup in group.parents if cgroup.is_relative_to(_GROUPS))
