"""The devices of this process, and its memory."""

import contextlib
import os
import pathlib
import uuid

import tensorflow as tf

from tfparallel_trainer import errors, tasks

_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


def prepare(cpu_devices: int, alone: bool, first_operation: str = "") -> int:
    """Configure the devices of this process before TensorFlow starts; return their number.

    All GPUs are used; without a GPU, the CPU is divided into `cpu_devices`. If TensorFlow runs
    already, more than one process or device is a UserCodeError with the place of what started it.
    """
    gpus = tf.config.list_physical_devices("GPU")
    try:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        if not gpus:
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0],
                [tf.config.LogicalDeviceConfiguration() for _ in range(cpu_devices)],
            )
    except RuntimeError as error:  # TensorFlow runs already
        if not alone or cpu_devices > 1:
            raise errors.UserCodeError(
                "The module runs a TensorFlow operation while it is imported, before the processes "
                "have found each other. Move it into build_model or the data functions.",
                place=first_operation,
            ) from error
    return len(gpus) or cpu_devices


def names(cluster: tasks.Cluster, count: int) -> list[str]:
    """Full names of this process's devices, such as /job:worker/replica:0/task:1/device:CPU:0."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return [f"{_process(cluster)}/device:{kind}:{index}" for index in range(count)]


def cpu(cluster: tasks.Cluster) -> str:
    """Full name of this process's first CPU."""
    return f"{_process(cluster)}/device:CPU:0"


def cpu_beside(device: str) -> str:
    """Full name of the first CPU of the process that has a device."""
    name = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0)
    return str(name.to_string())


def _process(cluster: tasks.Cluster) -> str:
    task = cluster.task
    return "" if cluster.alone else f"/job:{task.role}/replica:0/task:{task.index}"


def machine() -> str:
    """Return what tells this machine's kernel apart: containers of one node have the same.

    A random text where the kernel does not say it.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return uuid.uuid4().hex


def limit_threads() -> None:
    """Make TensorFlow's thread pools as large as the CPUs that this process may use.

    TensorFlow counts the machine's cores, which in a container are many more than its share.
    Environment variables that are set stay as they are. Call it before TensorFlow's first
    operation.
    """
    cpus = _cpus()
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(cpus))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(max(2, cpus)))


def _cpus(quota: pathlib.Path = pathlib.Path("/sys/fs/cgroup/cpu.max")) -> int:
    count = len(os.sched_getaffinity(0))
    try:
        limit, period = quota.read_text(encoding="ascii").split()
        share = -(-int(limit) // int(period))
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return count
    return max(1, min(count, share))


def free_bytes(root: pathlib.Path = pathlib.Path("/")) -> float:
    """Free memory in bytes, of the machine and of this process's control group."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    meminfo = {name: value for name, _, value in (line.partition(":") for line in lines)}
    free = [1024.0 * int(meminfo["MemAvailable"].split()[0])]
    group = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError):  # no limit is the word max
        limit = int((group / "memory.max").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        cached = int(dict(line.split() for line in lines)["inactive_file"])
        free.append(limit - int((group / "memory.current").read_text()) + cached)
    return min(free)
