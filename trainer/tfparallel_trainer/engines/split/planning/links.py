"""Measures how fast devices of this machine reach each other, within a process and between two.

Two processes add numbers up, few and many: two messages in a row, each with half of the bytes.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import cluster, collectives, devices, rendezvous, shape
from tfparallel_trainer.contract import environment
from tfparallel_trainer.engines.split.planning import hardware

_HOST = "127.0.0.1"
_PROCESSES = 2
_DEVICES = 2
"""Of each process."""
_MESSAGES = 2
"""One after the other, of a sum over two."""
_SIZES = (1, 1 << 23)
"""Numbers that are added up, of four bytes each. Gradients are many; fewer are faster by a third,
because they stay in the processor's cache."""
_TURNS = 5
"""Sums that follow each other in one measurement."""
_REPEATS = 5
_LIMIT_SECONDS = 240.0


def measure(devices_here: hardware.DeviceCluster) -> hardware.DeviceCluster:
    """Let two processes measure the links of this machine; a TrainerError says that they failed."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(cluster.reserved_port(_HOST)) for _ in range(_PROCESSES)]
        output = _run([f"{_HOST}:{port}" for port in ports])
    links = json.loads(output.splitlines()[-1])
    inside, across = (hardware.Link(**links[name]) for name in ("inside", "across"))
    return dataclasses.replace(devices_here, inside=inside, across=across)


def _run(addresses: Sequence[str]) -> bytes:
    """Run the processes; returns what the first one prints."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryFile() as stderr:
        processes = [
            subprocess.Popen(
                (sys.executable, "-m", __name__, str(cores[index % len(cores)])),
                env={**os.environ, **_surroundings(addresses, index)},
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
            for index in range(len(addresses))
        ]
        try:
            outputs = [process.communicate(timeout=_LIMIT_SECONDS)[0] for process in processes]
        except subprocess.TimeoutExpired as error:
            raise errors.StartTimeoutError(
                f"Two processes of this machine did not measure their links in {error.timeout:g} "
                "s: see whether other work leaves them time, or plan without --calibrate."
            ) from error
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(process.returncode for process in processes):
            stderr.seek(0)
            reason = stderr.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise errors.TrainerError(
                f"The links between processes of this machine cannot be measured ({reason}): plan "
                "without --calibrate."
            )
    return outputs[0]


def _surroundings(addresses: Sequence[str], index: int) -> Mapping[str, str]:
    task = {"type": "worker", "index": index}
    config = json.dumps({"cluster": {"worker": list(addresses)}, "task": task})
    # A device is one core; messages need a thread besides.
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    return {environment.TF_CONFIG: config, "CUDA_VISIBLE_DEVICES": "-1", **threads}


def _main() -> None:
    """One of the two processes; gets the core that it runs on."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    processes = tasks.parse(os.environ[environment.TF_CONFIG])
    devices.prepare(_DEVICES, alone=False)
    connections = rendezvous.meet(
        processes, _LIMIT_SECONDS, lambda line: print(line, file=sys.stderr)
    )
    strategy = rendezvous.join(processes, connections)
    mesh = shape.MeshShape(data=_PROCESSES, tensor=_DEVICES)
    names = devices.names(processes, _DEVICES)
    first = processes.me * _DEVICES
    both = dict(enumerate(names, first))
    links = {
        "inside": _link(mesh, shape.Axis.TENSOR, both),
        "across": _link(mesh, shape.Axis.DATA, {first: names[0]}),
    }
    print(json.dumps({name: dataclasses.asdict(link) for name, link in links.items()}))
    del strategy  # the processes are one cluster as long as it lives


def _link(mesh: shape.MeshShape, axis: shape.Axis, places: Mapping[int, str]) -> hardware.Link:
    """Measure along an axis with groups of two, of whose devices some are in this process."""
    ends = [
        (name, collectives.Communicator.for_rank(mesh.group(rank, axis), rank, name))
        for rank, name in places.items()
    ]
    few, many = (_sum_seconds(ends, variant, size) for variant, size in enumerate(_SIZES))
    size = tf.float32.size * (_SIZES[1] - _SIZES[0])
    few = min(few, many / 2)  # other work on the machine may have held it up
    return hardware.Link(bandwidth=size / (many - few), latency=few / _MESSAGES)


def _sum_seconds(
    ends: Sequence[tuple[str, collectives.Communicator]], variant: int, size: int
) -> float:

    def turns() -> Any:
        sums = []
        for name, end in ends:
            with tf.device(name):
                end.begin(collectives.Program.TRAIN, variant)
                row = tf.ones((size,), tf.float32)
                for _ in range(_TURNS):
                    row = end.sum(row)
                sums.append(row[0])
        return sums

    traced = tf.function(turns, autograph=False)
    seconds = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        for one in traced():
            one.numpy()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:]) / _TURNS  # what other work on the machine takes is not the link's


if __name__ == "__main__":
    _main()
