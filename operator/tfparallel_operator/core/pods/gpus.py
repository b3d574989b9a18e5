"""What containers with GPUs need: shared memory, and settings of NCCL."""

from typing import Any

from tfparallel_operator.api import names, quantities
from tfparallel_operator.core.pods import containers, memory

SHM_DIR = "/dev/shm"  # noqa: S108 (the container's own)
SHM_VOLUME = "tfparallel-shm"
SHM_MEBIBYTES_PER_GPU = 1024
"""NCCL takes some 10 MiB for each pair of GPUs and channel; container runtimes give 64 MiB."""

_RESOURCES = (names.GPU_RESOURCE, "amd.com/gpu")
_PARTS_PREFIX = "nvidia.com/mig-"
_MEBIBYTE = 1024**2

SETTINGS = {
    "NCCL_DEBUG": "WARN",  # else it fails without a word of why
    "TF_GPU_THREAD_MODE": "gpu_private",  # input pipelines do not hold kernel launches up
}
"""Variables of every container with GPUs."""


def prepare(container: containers.Container) -> None:
    """Give a container with GPUs shared memory and settings, in place, where it has none."""
    count = gpus(container.spec)
    if not count:
        return
    mounts = container.spec.get("volumeMounts") or ()
    if not any(str(mount.get("mountPath", "")).rstrip("/") == SHM_DIR for mount in mounts):
        mebibytes = _shared_mebibytes(container.spec, count)
        volume = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{mebibytes}Mi"}}
        container.mount(SHM_VOLUME, SHM_DIR, volume, read_only=False)
    for name, value in SETTINGS.items():
        container.set_env(name, value)


def gpus(container: dict[str, Any]) -> int:
    """Return how many GPUs, or parts of one, a container has."""
    limits = (container.get("resources") or {}).get("limits") or {}
    counts = [
        quantities.parse_count(str(count))
        for name, count in limits.items()
        if name in _RESOURCES or name.startswith(_PARTS_PREFIX)
    ]
    return sum(filter(None, counts))


def _shared_mebibytes(container: dict[str, Any], count: int) -> int:
    """Return the size of /dev/shm: what is written there counts as the container's memory."""
    size = count * SHM_MEBIBYTES_PER_GPU
    limits = container["resources"]["limits"]
    limit = memory.parse(str(limits.get("memory", "")))
    return size if limit is None else max(1, min(size, limit // 2 // _MEBIBYTE))
