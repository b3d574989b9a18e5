"""Devices and the links between them, as values, and how long messages take. Pure."""

import dataclasses
from collections.abc import Collection

import numpy as np

from tfparallel_trainer.comms import shape


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
    bandwidth: float = 4e9
    """Bytes a second that operations without products read and write."""
    update: Update = Update()
    call_seconds: float = 2e-5
    """What each operation takes besides."""


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
