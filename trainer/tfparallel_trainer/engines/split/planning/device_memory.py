"""How much memory each device of this process has for tensors, where something limits it."""

import pathlib
import resource
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_GROUPS = pathlib.Path("/sys/fs/cgroup")
_PROCESS = pathlib.Path("/proc/self")
_LIMITS = {"VmData": resource.RLIMIT_DATA, "VmSize": resource.RLIMIT_AS}
"""What the kernel counts for a limit of a process."""


def of_device(count: int) -> int | None:
    """Bytes that each of so many devices may take; None when nothing limits them.

    GPUs have what TensorFlow may take of them. Those of a processor share what the control group
    (v2) and the limits of the process leave besides what it already has.
    """
    if tf.config.list_physical_devices("GPU"):
        return _of_gpus()
    left = list(_left())
    return max(1, min(left) // count) if left else None


def _of_gpus() -> int:
    from tensorflow.python.client import device_lib  # the public API does not tell it

    devices: Any = device_lib.list_local_devices()
    return min(int(one.memory_limit) for one in devices if one.device_type == "GPU")


def _left() -> Iterator[int]:
    """What each limit leaves of itself."""
    usage = dict(_usage())
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


def _usage() -> Iterator[tuple[str, int]]:
    """What this process has, in bytes, as the kernel names and counts it."""
    for line in (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Vm"):
            yield name, int(value.split()[0]) * 1024


def _groups() -> Iterator[pathlib.Path]:
    """The folders of the control group of this process and of those around it."""
    for line in (_PROCESS / "cgroup").read_text(encoding="utf-8").splitlines():
        if line.startswith("0::/"):
            group = _GROUPS / line.removeprefix("0::/")
            yield group
            yield from (one for one in group.parents if one.is_relative_to(_GROUPS))
