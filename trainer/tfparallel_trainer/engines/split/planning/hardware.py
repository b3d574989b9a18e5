"""Devices and the links between them, as values, and how long messages take. Pure."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Self

import numpy as np

from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract.gpu_types import DeviceType

_OF_PEAK = 0.5
"""Share of a GPU's peak that products of matrices reach, roughly."""

_OF_BANDWIDTH = 0.8
"""Share of a GPU's bandwidth that operations without products and links reach, roughly."""

_GPU_LATENCY = 2e-5
"""Seconds of a message between GPUs of one node without content."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How fast a device changes weights. The defaults are one core of a processor."""

    bandwidth: float = 4e9
    """Bytes a second of weights, gradients and slots, read or written."""
    weight_seconds: float = 2e-4
    """What each weight takes besides."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What one rank computes with. The defaults are one core of a processor."""

    memory: int | None = None
    """Bytes that TensorFlow may take for tensors; None: no limit."""
    flops: float = 2e10
    """Floating point operations a second in products of matrices and convolutions."""
    flops_by_dtype: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The same of some types of numbers."""
    bandwidth: float = 4e9
    """Bytes a second that operations without products read and write."""
    update: Update = Update()
    call_seconds: float = 2e-5
    """What each operation takes besides."""
    type_name: str | None = None
    """Of a GPU."""

    @classmethod
    def of_type(cls, device_type: DeviceType, memory: int | None = None) -> Self:
        """A GPU that reaches a share of what its data sheet says; `memory` is another limit."""
        bandwidth = _OF_BANDWIDTH * device_type.bandwidth * 1e9
        return cls(
            memory=device_type.memory if memory is None else memory,
            flops=_OF_PEAK * device_type.flops["float32"],
            flops_by_dtype={dtype: _OF_PEAK * peak for dtype, peak in device_type.flops.items()},
            bandwidth=bandwidth,
            update=Update(bandwidth=bandwidth),
            type_name=device_type.name,
        )

    def flops_of(self, dtype: str) -> float:
        """Floating point operations a second with numbers of a type."""
        return self.flops_by_dtype.get(dtype, self.flops)


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """A way between two devices."""

    bandwidth: float
    """Bytes a second."""
    latency: float
    """Seconds of a message without content."""

    def message(self, size: float) -> float:
        """Seconds of a message of so many bytes."""
        return self.latency + size / self.bandwidth

    def total(self, ranks: int, size: float) -> float:
        """Seconds of a sum of so many bytes in a ring: 2(n-1) steps (Patarasuk, Yuan 2009)."""
        steps = 2 * (ranks - 1)
        return steps * self.latency + steps / ranks * size / self.bandwidth


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCluster:
    """Equal devices in processes of equal size; ranks go through one process after the other."""

    processes: int = 1
    devices: int = 1
    """Of each process."""
    device: Device = dataclasses.field(default_factory=Device)
    inside: Link = Link(4e9, 5e-5)
    """Between devices of one process."""
    across: Link = Link(1e9, 5e-4)
    """Between processes."""

    @classmethod
    def of_type(
        cls, processes: int, devices: int, device_type: DeviceType, memory: int | None = None
    ) -> Self:
        """GPUs of a type; between pods, the network decides, of which it says nothing."""
        return cls(
            processes=processes,
            devices=devices,
            device=Device.of_type(device_type, memory),
            inside=Link(_OF_BANDWIDTH * device_type.link * 1e9, _GPU_LATENCY),
        )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.processes * self.devices

    def link(self, ranks: Collection[int]) -> Link:
        """The slowest link that ranks need to reach each other."""
        return self.inside if len({rank // self.devices for rank in ranks}) == 1 else self.across


def link_within(mesh: shape.MeshShape, cluster: DeviceCluster) -> Link:
    """The slowest link between ranks that split layers together."""
    axes = (shape.Axis.TENSOR, shape.Axis.SPATIAL)
    return cluster.link({rank for axis in axes for rank in mesh.group(0, axis).ranks})


def link_between(mesh: shape.MeshShape, cluster: DeviceCluster, stage: int, other: int) -> Link:
    """The slowest link between ranks of two stages that send to each other."""
    processes = np.arange(mesh.size).reshape(mesh.degrees) // cluster.devices
    if (processes[:, stage] == processes[:, other]).all():
        return cluster.inside
    return min(cluster.inside, cluster.across, key=lambda link: link.bandwidth)
