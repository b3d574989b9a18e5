"""Builds the question for the planner from a model or a job, and the command's options."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel import validation
from tfparallel.job_source import source as sources
from tfparallel.planning import option_values
from tfparallel_operator.api import load, types
from tfparallel_trainer.contract import gpu_types, job_file, plan

_MANIFESTS = (".yaml", ".yml", ".json")
_TRAINING = (types.Role.CHIEF, types.Role.MASTER, types.Role.WORKER)

_AS_IF_RUN = ("spec.runPolicy.suspend=false",)
"""A suspended job can be planned, though it cannot run."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the command line says; None and empty: as the job says, or the default."""

    devices: int | None = None
    pods: int | None = None
    memory: str | None = None
    device_type: str | None = None
    mesh: str | None = None
    microbatches: int | None = None
    schedule: str | None = None
    batch: int | None = None
    length: int | None = None
    calibrate: bool = False
    overrides: Sequence[str] = ()
    """Changes of the job's fields."""


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """The model to plan, and the parts of the job that the plan ignores."""

    name: str
    question: plan.Question
    files: Mapping[str, str | bytes] = dataclasses.field(default_factory=dict)
    """The module and what it imports, where no folder has them."""
    notes: tuple[str, ...] = ()


def read(file: pathlib.Path, options: PlanOptions) -> Subject:
    """Return the question for a model.py or a job's YAML file; options go before the job's fields.

    Raises:
        SpecError: the job or an option is wrong.
    """
    if file.suffix not in _MANIFESTS:
        return Subject(file.stem, _with_options(_of_module(file, options), options))
    changes = (*options.overrides, *_AS_IF_RUN)
    with validation.located(file, changes):
        return _of_job(sources.read(file, changes), options)


def read_for_gpus(
    document: Mapping[str, Any],
    documents: Sequence[Mapping[str, Any]],
    nodes: Sequence[Mapping[str, str]],
) -> Subject | None:
    """Return the question for a job that divides its model over GPUs that the planner knows.

    None for any other job, and for one whose files are not here.

    Args:
        document: the job's manifest.
        documents: the ConfigMaps that it brings.
        nodes: the labels of each node with GPUs.

    Raises:
        SpecError: the job is wrong.
    """
    source = sources.build(_without_suspension(document), pathlib.Path(), documents)
    trainer = source.job.spec.trainer
    if source.job.spec.mesh is None or trainer is None or sources.code(source, trainer) is None:
        return None
    subject = _of_job(source, PlanOptions(), nodes)
    return None if subject.question.device_type is None else subject


def _without_suspension(document: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = document["spec"]
    policy = {**(spec.get("runPolicy") or {}), "suspend": False}
    return {**document, "spec": {**spec, "runPolicy": policy}}


def _of_job(
    source: sources.JobSource, options: PlanOptions, nodes: Sequence[Mapping[str, str]] = ()
) -> Subject:
    spec = source.job.spec
    trainer, mesh = spec.trainer, spec.mesh or job_file.Mesh(auto=True)
    if trainer is None:
        raise load.SpecError(
            "spec.trainer: missing; the planner needs its module. Add it, or give the path of a"
            " model.py"
        )
    processes, devices = _replicas(spec.tf_replica_specs)
    asked_by_job = plan.Question(
        folder=str(source.folder),
        module=trainer.module,
        processes=processes,
        devices=devices,
        mesh=None if mesh.auto else mesh.axes,
        microbatches=None if mesh.auto else mesh.microbatches,
        schedule=mesh.schedule,
        shard_optimizer=mesh.shard_optimizer or (None if mesh.auto else False),
        recompute=mesh.recompute or (None if mesh.auto else False),
        batch=trainer.global_batch_size,
        seed=trainer.seed,
        saves_checkpoints=trainer.checkpoint is not None,
        requested_memory=_requested_memory(spec.tf_replica_specs),
        device_type=_device_type(spec.tf_replica_specs, nodes),
    )
    files = sources.code(source, trainer) or {}
    question = _with_options(asked_by_job, options)
    is_of_cores = question.device_type is None and not question.calibrate
    notes = (*_notes_on_cuts(spec), *(_notes_on_gpus(spec) if is_of_cores else ()))
    return Subject(source.job.metadata.name, question, files, notes)


def _replicas(roles: Mapping[types.Role, types.ReplicaSpec]) -> tuple[int, int]:
    """Return the number of replicas that train, and the devices of each."""
    training = {role: roles[role] for role in _TRAINING if role in roles}
    devices = {role: load.devices_of(spec) for role, spec in training.items()}
    if len(set(devices.values())) > 1:
        listed = " and ".join(f"{role} has {count}" for role, count in devices.items())
        raise load.SpecError(
            f"spec.tfReplicaSpecs: a plan needs equally many devices in each replica, and {listed}:"
            " give them the same devices"
        )
    return sum(spec.replicas for spec in training.values()), next(iter(devices.values()))


def _requested_memory(roles: Mapping[types.Role, types.ReplicaSpec]) -> int | None:
    """Return the least memory that a replica that trains requests."""
    requested = [load.memory_of(roles[role]) for role in _TRAINING if role in roles]
    return min((count for count in requested if count is not None), default=None)


def _device_type(
    roles: Mapping[types.Role, types.ReplicaSpec], nodes: Sequence[Mapping[str, str]]
) -> str | None:
    """Return the GPU that all replicas that train ask for or will find, if it is known."""
    gpus = {_find_gpu(roles[role], nodes) for role in _TRAINING if role in roles}
    [device_type, *others] = gpus
    return None if others or device_type is None else device_type.name


def _find_gpu(
    spec: types.ReplicaSpec, nodes: Sequence[Mapping[str, str]]
) -> gpu_types.DeviceType | None:
    """Return the GPU that the nodeSelector names; else that with the most memory of its nodes.

    If a node has a GPU that is not known, nobody knows whether the replica gets a larger one.
    """
    selector = spec.pod_spec.get("nodeSelector") or {}
    selected = gpu_types.find_by_labels(selector)
    if selected is not None or not load.gpus_of(spec):
        return selected
    offered = [
        gpu_types.find_by_labels(labels) for labels in nodes if selector.items() <= labels.items()
    ]
    known_gpus = [gpu for gpu in offered if gpu is not None]
    if len(known_gpus) < len(offered):
        return None
    return max(known_gpus, key=lambda gpu: gpu.memory, default=None)


def _of_module(file: pathlib.Path, options: PlanOptions) -> plan.Question:
    if options.overrides:
        raise load.SpecError(
            f"--set {options.overrides[0]}: {file} is no job; give the path of a job's YAML file,"
            " or remove --set"
        )
    if options.devices is None:
        raise load.SpecError(
            f"--devices: missing; {file} does not say how many devices train it. Give --devices,"
            " or the path of a job's YAML file"
        )
    if not file.is_file():
        raise load.SpecError(f"{file}: no such file; give the path of a model.py or of a job")
    return plan.Question(
        folder=str(file.resolve().parent), module=file.name, processes=options.devices, devices=1
    )


def _with_options(basis: plan.Question, options: PlanOptions) -> plan.Question:
    """Return a question in which options replace fields."""
    processes, devices = _divide(basis, options)
    if options.calibrate and options.device_type is not None:
        raise load.SpecError(
            f"--calibrate: it measures this machine, which is no {options.device_type}; remove it,"
            " or remove --device-type"
        )
    changes = {
        "memory": None if options.memory is None else option_values.size(options.memory),
        "microbatches": options.microbatches,
        "schedule": _schedule(options),
        "batch": options.batch,
        "length": options.length,
    }
    changed = basis.model_copy(
        update={
            "processes": processes,
            "devices": devices,
            "calibrate": options.calibrate,
            "device_type": None if options.calibrate else options.device_type or basis.device_type,
            **{name: value for name, value in changes.items() if value is not None},
        }
    )
    if options.mesh == option_values.AUTO:
        return changed.model_copy(
            update={
                "mesh": None,
                "microbatches": options.microbatches,
                "shard_optimizer": basis.shard_optimizer or None,
                "recompute": basis.recompute or None,
            }
        )
    if options.mesh is not None:
        return changed.model_copy(update={"mesh": option_values.mesh(options.mesh)})
    return changed


def _schedule(options: PlanOptions) -> job_file.PipelineSchedule | None:
    return None if options.schedule is None else job_file.PipelineSchedule(options.schedule)


def _divide(basis: plan.Question, options: PlanOptions) -> tuple[int, int]:
    """Return the number of pods and the devices of each."""
    total = options.devices or basis.processes * basis.devices
    return option_values.pods(total, options.pods or basis.processes)


def _notes_on_gpus(spec: types.Spec) -> tuple[str, ...]:
    roles = spec.tf_replica_specs
    asking = [role for role in _TRAINING if role in roles and load.gpus_of(roles[role])]
    if not asking:
        return ()
    return (
        f"spec.tfReplicaSpecs.{asking[0]}: no label in the nodeSelector of its template names a GPU"
        " that the planner knows, so times are those of cores of a processor. Give --device-type",
    )


def _notes_on_cuts(spec: types.Spec) -> tuple[str, ...]:
    if spec.mesh is None or not spec.mesh.cuts:
        return ()
    return (
        f"spec.mesh.cuts: {', '.join(spec.mesh.cuts)} is not used here; the planner chooses where"
        " stages begin",
    )
