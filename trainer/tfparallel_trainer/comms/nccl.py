"""Whether groups of GPUs can use NCCL: it needs a GPU for each rank, and a TensorFlow that has it.

TensorFlow uses NCCL only for operations that ask for it, and fails where it cannot. So all
processes tell each other which GPUs they have, and decide alike.
"""

import ctypes
import uuid
from collections.abc import Sequence

import tensorflow as tf

from tfparallel_trainer import tasks
from tfparallel_trainer.comms import agreement, collectives, devices

_DRIVER = "libcuda.so.1"
_LONGEST_ADDRESS = 32


def find_obstacle(cluster: tasks.Cluster, names: Sequence[str]) -> str:
    """Return why GPUs cannot use NCCL, for people; empty if they can. All processes call it.

    Args:
        cluster: the processes, which TensorFlow has connected.
        names: the devices of this process, which are GPUs.
    """
    places = map(agreement.digest, _addresses(len(names)))
    numbers = [int(_is_built()), int(_is_undivided()), *places]
    if cluster.alone:
        return judge([numbers])
    program = collectives.Program.IDENTIFY
    return judge(agreement.Numbers(cluster, names[0], program, len(numbers))(numbers))


def judge(table: Sequence[Sequence[int]]) -> str:
    """Return the obstacle, from the numbers that each process gives.

    The first is whether its TensorFlow has NCCL, the second whether its ranks have whole GPUs. The
    others say which GPUs these are.
    """
    is_built, is_undivided, *_ = zip(*table, strict=True)
    gpus = [gpu for _, _, *local_gpus in table for gpu in local_gpus]
    if not all(is_built):
        return "this TensorFlow is built without it"
    if not all(is_undivided):
        return "TensorFlow divides a GPU into several devices"
    if len(set(gpus)) < len(gpus):
        return "several ranks share a GPU"
    return ""


def describe(obstacle: str) -> str:
    """Return how GPUs exchange tensors, as one sentence for the log."""
    if obstacle:
        return f"GPUs exchange tensors by host memory and gRPC, without NCCL: {obstacle}"
    return "GPUs exchange tensors by NCCL"


def _is_built() -> bool:
    """Whether TensorFlow has NCCL, or RCCL of AMD, which registers itself by the same name."""
    build = tf.sysconfig.get_build_info()
    return bool(build.get("is_cuda_build") or build.get("is_rocm_build"))


def _is_undivided() -> bool:
    physical = tf.config.list_physical_devices("GPU")
    return len(tf.config.list_logical_devices("GPU")) == len(physical)


def _addresses(count: int) -> list[str]:
    """Return where the GPUs of this process are: the machine, and the address on its PCI bus.

    NCCL compares the same. GPUs whose address cannot be found are taken for different ones.
    """
    unknown, machine = uuid.uuid4().hex, devices.machine()
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return [f"{unknown} {number}" for number in range(count)]
    driver.cuInit(0)  # TensorFlow has done so before
    addresses = []
    for number in range(count):
        text = ctypes.create_string_buffer(_LONGEST_ADDRESS)
        is_known = driver.cuDeviceGetPCIBusId(text, _LONGEST_ADDRESS, number) == 0
        address = text.value.decode() if is_known else f"{unknown} {number}"
        addresses.append(f"{machine} {address}")
    return addresses
