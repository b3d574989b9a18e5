"""The progress protocol: what the coordinator POSTs, and what a job's status shows of it.

Numbers that may be fractional or not finite are strings, as the Kubernetes API conventions ask.
"""

import enum
import math
from typing import Annotated

import pydantic

from tfparallel_trainer.contract import base, job_file, limits
from tfparallel_trainer.contract.separate_training import SeparateTraining
from tfparallel_trainer.contract.verification import Verification

MIN_INTERVAL_SECONDS = 5.0
"""Shortest time between two reports of a job, except for the last one."""

MAX_INPUT_WAIT = 0.1
"""The share of the time that a coordinator may wait for its input before it counts as slow."""

STRAGGLER_FACTOR = 1.5
"""A stage or a replica is a straggler if it takes so many times as long as the median of the
others."""

_BYTE_UNITS = tuple(
    (1024**power, f"{prefix}iB") for power, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K"))
)

Metrics = Annotated[
    dict[limits.Name, limits.NumberText], pydantic.Field(max_length=limits.MAX_METRICS)
]
"""Names of metrics and their values, written by `format_number`."""


class RunSeconds(base.Model):
    """Where the time of the coordinator's process went since its first step ended. Whole seconds,
    whose sum is that time."""

    training: limits.Count
    """Steps that no earlier attempt had made."""

    input_wait: limits.Count = 0
    """Steps that waited for data."""

    evaluating: limits.Count = 0
    """Training waited for an evaluation."""

    checkpointing: limits.Count = 0
    """Training waited for a checkpoint."""

    recomputing: limits.Count = 0
    """Steps that an earlier attempt had made."""


class Progress(base.Model):
    """How far training has come."""

    step: limits.Count
    """Optimizer steps made."""

    total_steps: Annotated[limits.Count, pydantic.Field(ge=1)] | None = None
    """Optimizer steps to make in all, where that is known."""

    epoch: limits.Count = 0
    """Epochs completed."""

    percent: Annotated[int, pydantic.Field(ge=0, le=100)] | None = None
    """Share of the steps that are made."""

    examples_per_second: limits.NumberText | None = None
    """Training examples a second over all replicas, since the report before."""

    input_wait: limits.NumberText | None = None
    """Recent share of time for which the coordinator waits for its input: 0.35."""

    straggler: limits.Name | None = None
    """The replica that has been slower than the others for a while: worker-1."""

    metrics: Metrics = pydantic.Field(default_factory=dict)
    """The latest loss and metrics; those of the evaluation begin with val_."""

    eta: limits.NumberText | None = None
    """Time to go, such as 1h2m or 45s."""

    seconds: RunSeconds | None = None
    """Where the time went since the first step of this attempt."""


class StagePlacement(base.Model):
    """One stage of a model that is split: where it runs, and what it holds."""

    stage: limits.Parts
    """Its number, from 0."""

    devices: Annotated[tuple[limits.Name, ...], pydantic.Field(max_length=limits.MAX_STAGE_DEVICES)]
    """The first of its devices, each as replica and device: worker-1/GPU:0."""

    device_count: Annotated[limits.Parts, pydantic.Field(ge=1)]
    """How many devices it has."""

    layers: limits.LayersText
    """Its first and its last layer."""

    layer_count: limits.Parts
    """How many layers it has."""

    parameter_bytes: limits.Count
    """Bytes of weights on each of its devices; where they differ, the most."""

    busy_seconds: limits.SecondsText | None = None
    """Recent seconds of a step in which the stage computes; it waits in the others."""

    planned_seconds: limits.SecondsText | None = None
    """The planner's estimate of it: compare its share of all stages. Absent where mesh.cuts says
    where stages begin."""


class ChangedSetting(enum.StrEnum):
    """What a job would have to change so that its model fits its devices."""

    SHARD_OPTIMIZER = "ShardOptimizer"
    RECOMPUTE = "Recompute"
    MICROBATCHES = "Microbatches"
    MESH = "Mesh"
    BATCH_SIZE = "BatchSize"
    DEVICES = "Devices"


_CHANGES = {
    ChangedSetting.SHARD_OPTIMIZER: "with mesh.shardOptimizer",
    ChangedSetting.RECOMPUTE: "with mesh.recompute",
    ChangedSetting.MICROBATCHES: "with mesh.microbatches {count}",
    ChangedSetting.MESH: "on another mesh ({mesh})",
    ChangedSetting.BATCH_SIZE: "with a batch of {count}",
    ChangedSetting.DEVICES: "on {count} devices ({mesh})",
}
"""As they follow "The model fits"."""


class FittingChange(base.Model):
    """One change of a job with which, by the planner's estimate, its model fits its devices."""

    setting: ChangedSetting
    """What changes."""

    count: limits.Count | None = None
    """The number of microbatches, of examples in a batch, or of devices."""

    mesh: limits.MeshText | None = None
    """The mesh and its microbatches, if these change: data 2 x stage 2, microbatches 4."""

    def __str__(self) -> str:
        """The change as it follows "The model fits"."""
        return _CHANGES[self.setting].format(count=self.count, mesh=self.mesh)


class MemoryPlan(base.Model):
    """What the planner expects the fullest device to hold, and what the devices can hold."""

    stage: limits.Parts
    """The stage of the fullest device."""

    peak_bytes: limits.Count
    """The most bytes of tensors on that device at one time, by the planner's estimate."""

    device_bytes: limits.Count
    """Bytes that tensors may take on each device; of unequal devices, the least."""

    larger_device: limits.Name | None = None
    """If the devices are GPUs: the GPU with the least memory that is enough, if any is."""

    changes: Annotated[
        tuple[FittingChange, ...], pydantic.Field(max_length=limits.MAX_FITTING_CHANGES)
    ] = ()
    """Changes of which each would make the model fit, the smallest first. Empty where it fits."""

    @property
    def is_exceeded(self) -> bool:
        """Whether the device is expected to hold more than it can."""
        return self.peak_bytes > self.device_bytes

    @property
    def problem(self) -> str:
        """What is expected, without a period."""
        return (
            "the model does not fit its devices, by the planner's estimate: one of stage"
            f" {self.stage} needs {format_bytes(self.peak_bytes)} for tensors, and has"
            f" {format_bytes(self.device_bytes)}"
        )

    @property
    def remedy(self) -> str:
        """Each change with which the model fits, in a sentence."""
        larger = "" if self.larger_device is None else f" (a {self.larger_device} has it)"
        enough = f"on devices of {format_bytes(self.peak_bytes)}{larger}"
        changes = [*map(str, self.changes), f"or {enough}"] if self.changes else [enough]
        return f"The model fits {', '.join(changes)}."


class Placement(base.Model):
    """Where the parts of a model that is split are."""

    mesh: job_file.Mesh
    """The mesh that is used: as given, or as the planner chose it, with every axis a number."""

    stages: Annotated[tuple[StagePlacement, ...], pydantic.Field(max_length=limits.MAX_STAGES)] = ()
    """The stages in the order of the pipeline; one when the layers are not divided."""

    reasons: Annotated[
        tuple[limits.ReasonText, ...], pydantic.Field(max_length=limits.MAX_REASONS)
    ] = ()
    """Why the planner divides the model so, and what the next best would cost, by its estimate.
    Empty where mesh.cuts says where stages begin."""

    memory: MemoryPlan | None = None
    """What the fullest device is expected to hold, and what devices can. Absent where nothing
    limits their memory, and where mesh.cuts says where stages begin."""

    @property
    def exceeded_memory(self) -> MemoryPlan | None:
        """What the fullest device is expected to hold, if that is more than it can; else None."""
        return self.memory if self.memory is not None and self.memory.is_exceeded else None

    @pydantic.field_validator("mesh")
    @classmethod
    def _printable_cuts(cls, mesh: job_file.Mesh) -> job_file.Mesh:
        for name in mesh.cuts:
            limits.check_printable(name)
        return mesh


_Verified = Verification | None
_Separate = SeparateTraining | None


class Report(Progress):
    """What the coordinator POSTs."""

    placement: Placement | None = None
    """Where the parts of the model are, with strategy ModelSplit."""

    verification: _Verified = None
    """What was compared with one process, after the first check."""

    separate_training: _Separate = None
    """That the replicas of a script train models of their own. Such a report has no progress."""

    before_first_step: bool | None = None
    """True: no step of this attempt has ended. Such a report has a placement, and no progress."""


def format_number(value: float) -> str:
    """Write a number as the protocol wants it: six significant digits, NaN, Infinity."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return f"{value:.6g}"


def find_byte_unit(count: float) -> tuple[int, str]:
    """Return the bytes and the name of the largest unit that a number of bytes reaches."""
    return next((unit for unit in _BYTE_UNITS if count >= unit[0]), (1, "B"))


def format_bytes(count: float) -> str:
    """Write bytes for people, with three digits or a few more: 1.25 MiB, 1023 B."""
    size, name = find_byte_unit(count)
    value = count / size
    return f"{value:.0f} {name}" if value >= 100 else f"{value:.3g} {name}"


def format_seconds(seconds: float) -> str:
    """Write a short time with three digits: 250 µs, 9.63 ms, 1.2 s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def format_duration(seconds: float) -> str:
    """Write a time to go with its two largest units: 2d3h, 1h2m, 1m15s, 45s."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
