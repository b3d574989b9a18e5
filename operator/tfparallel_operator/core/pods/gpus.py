"""Gives containers with accelerators shared memory, and settings of NCCL."""

from typing import Any

from tfparallel_operator.api import accelerators
from tfparallel_operator.core.pods import containers, memory

SHM_DIR = "/dev/shm"  # noqa: S108 (the container's own)
SHM_VOLUME = "tfparallel-shm"
SHM_MEBIBYTES_PER_GPU = 1024
"""Bytes of shared memory for each accelerator.

NCCL needs some 10 MiB for each pair of GPUs and each channel, but container runtimes give 64 MiB.
"""

_GPUS_OF_CLAIMS = 8
"""Assumed number of devices of a claim of dynamic resource allocation, which does not say it.

It is the maximum of a usual node. The size of /dev/shm is only a limit, and takes no memory.
"""

_MEBIBYTE = 1024**2

SETTINGS = {
    "NCCL_DEBUG": "WARN",  # else it fails without a word of why
    "TF_GPU_THREAD_MODE": "gpu_private",  # input pipelines do not hold kernel launches up
}
"""Variables of every container with accelerators.

RCCL of AMD reads those of NCCL. Other accelerators ignore them.
"""


def prepare(container: containers.ContainerBuilder) -> None:
    """Add missing shared memory and settings to a container with accelerators, in place."""
    count = _count(container.spec)
    if not count:
        return
    mounts = container.spec.get("volumeMounts") or ()
    if not any(str(mount.get("mountPath", "")).rstrip("/") == SHM_DIR for mount in mounts):
        mebibytes = _shared_mebibytes(container.spec, count)
        volume = {"emptyDir": {"medium": "Memory", "sizeLimit": f"{mebibytes}Mi"}}
        container.mount(SHM_VOLUME, SHM_DIR, volume, read_only=False)
    for name, value in SETTINGS.items():
        container.set_env(name, value)


def _count(container: dict[str, Any]) -> int:
    """Return how many accelerators, or parts of one, a container may have."""
    resources = container.get("resources") or {}
    named = accelerators.count(resources.get("limits") or {})
    return named or (_GPUS_OF_CLAIMS if resources.get("claims") else 0)


def _shared_mebibytes(container: dict[str, Any], count: int) -> int:
    """Return the size of /dev/shm. Its content counts as memory of the container."""
    size = count * SHM_MEBIBYTES_PER_GPU
    limits = container["resources"].get("limits") or {}
    limit = memory.parse(str(limits.get("memory", "")))
    return size if limit is None else max(1, min(size, limit // 2 // _MEBIBYTE))
