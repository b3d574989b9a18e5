"""Starts the competitors, each in the Python environment of its framework."""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from benchmarks import processes, results
from benchmarks.peers import run, workloads
from testing.cluster import folders
from testing.trainer import launch
from tfparallel.backends.local import ports
from tfparallel_trainer.contract import environment

Mesh = dict[str, object]


@dataclasses.dataclass(frozen=True, slots=True)
class RunTimes:
    """One run of a competitor."""

    step: float
    """Seconds, the mean over all epochs but the first."""
    start: float
    """Seconds from the command to the end of the first step."""
    loss: float
    """The mean of the last epoch."""


Competitor = Callable[[str, pathlib.Path], RunTimes]
"""Runs on a model, with the folder of weights and batches."""


def prepare(name: str, folder: pathlib.Path) -> None:
    """Write weights and batches of a model for its competitors."""
    command = [sys.executable, "-m", "benchmarks.peers.preparation", name, str(folder)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run(command, check=True, cwd=processes.ROOT, env=quiet)


@functools.cache
def interpreter(framework: str) -> str:
    """The Python of a framework's environment, which is installed when it is first asked for."""
    pinned = requirements(f"peers-{framework}")
    digest = hashlib.sha256(pinned.read_bytes()).hexdigest()[:16]
    home = folders.cache() / "peers" / f"{framework}-{digest}"
    python = home / "bin" / "python"
    complete = home / "complete"
    if not complete.exists():
        print(f"installing {pinned.name} into {home}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
        subprocess.run([*install, "-r", str(pinned)], check=True)
        complete.touch()
    return str(python)


def requirements(name: str) -> pathlib.Path:
    """The file of pinned requirements of a name."""
    return processes.ROOT / "requirements" / f"{name}.txt"


def ours(name: str, folder: pathlib.Path, *, count: int = 1, mesh: Mesh | None = None) -> RunTimes:
    """Run the trainer on so many processes, with a mesh under ModelSplit."""
    strategy = "MultiWorkerMirrored" if mesh is None else "ModelSplit"
    with tempfile.TemporaryDirectory() as work:
        environments = launch.environments(
            pathlib.Path(work),
            processes.ROOT / "benchmarks" / "peers",
            _settings(name),
            processes=count,
            strategy=strategy,
            mesh=mesh,
            more={"BENCHMARK_MODEL": name},
        )
        return _ours(name, environments, pathlib.Path(work))


def our_servers(name: str, folder: pathlib.Path) -> RunTimes:
    """Run the trainer with one server and two workers."""
    with tempfile.TemporaryDirectory() as work:
        environments = launch.with_servers(
            pathlib.Path(work), processes.ROOT / "benchmarks" / "peers", _settings(name)
        )
        variables = [{**process, "BENCHMARK_MODEL": name} for process in environments.values()]
        return _ours(name, variables, pathlib.Path(work))


def _settings(name: str) -> dict[str, object]:
    """Of our trainer, for a model."""
    return {
        "module": "job.py",
        "epochs": run.EPOCHS,
        "globalBatchSize": workloads.MODELS[name].batch,
    }


def _ours(name: str, environments: list[dict[str, str]], work: pathlib.Path) -> RunTimes:
    started = _run(processes.TRAINER, environments, work)
    events = [event for event in processes.read(work / "output") if event.kind == "train"]
    steps = workloads.MODELS[name].steps
    ends = {
        int(event.number("epoch")): event
        for event in events
        if event.number("step") == event.number("epoch") * steps
    }
    span = ends[run.EPOCHS].moment - ends[1].moment
    return RunTimes(
        step=span / (steps * (run.EPOCHS - 1)),
        start=events[0].moment - started,
        loss=float(ends[run.EPOCHS].facts["metrics"]["loss"]),
    )


def peer(
    name: str,
    folder: pathlib.Path,
    *,
    script: str,
    arguments: Sequence[str] = (),
    framework: str = "",
    count: int = 1,
    reporter: int = 0,
) -> RunTimes:
    """Run a script of this package; the environment of TensorFlow is ours.

    Args:
        name: the model.
        folder: with weights and batches.
        script: the module's name.
        arguments: of the script.
        framework: `torch` or `jax`; empty for TensorFlow.
        count: processes.
        reporter: the process that reports.
    """
    addresses = [f"{ports.HOST}:{port}" for port in ports.allocate(count)]
    python = interpreter(framework) if framework else sys.executable
    environments = [
        {
            "CONTEST_MODEL": name,
            "CONTEST_RANK": str(rank),
            "CONTEST_ADDRESSES": ",".join(addresses),
            "CONTEST_FOLDER": str(folder),
            **_framework_variables(framework),
            **_tf_config({"worker": addresses}, "worker", rank),
        }
        for rank in range(count)
    ]
    command = [python, "-m", f"benchmarks.peers.{script}", *arguments]
    with tempfile.TemporaryDirectory() as work:
        started = _run(command, environments, pathlib.Path(work), reporter)
        return _read(name, started, pathlib.Path(work, f"{reporter}.out"))


def coordinator(name: str, folder: pathlib.Path) -> RunTimes:
    """Run the hand-written coordinator with one server and two workers."""
    roles = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    cluster: dict[str, list[str]] = {}
    for (role, _), port in zip(roles, ports.allocate(len(roles)), strict=True):
        cluster.setdefault(role, []).append(f"{ports.HOST}:{port}")
    environments = [
        {
            "CONTEST_MODEL": name,
            "CONTEST_RANK": "0",
            "CONTEST_ADDRESSES": ports.HOST,
            "CONTEST_FOLDER": str(folder),
            **_tf_config(cluster, role, index),
        }
        for role, index in roles
    ]
    command = [sys.executable, "-m", "benchmarks.peers.coordinator_loop"]
    with tempfile.TemporaryDirectory() as work:
        started = _run(command, environments, pathlib.Path(work), reporter=0)
        return _read(name, started, pathlib.Path(work, "0.out"))


def _framework_variables(framework: str) -> dict[str, str]:
    if framework != "jax":
        return {}
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return {"KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def _tf_config(cluster: dict[str, list[str]], role: str, index: int) -> dict[str, str]:
    task = {"type": role, "index": index}
    return {environment.TF_CONFIG: json.dumps({"cluster": cluster, "task": task})}


def _run(
    command: Sequence[str],
    environments: Sequence[dict[str, str]],
    work: pathlib.Path,
    reporter: int | None = None,
) -> float:
    """Run processes, each on a core, until one has ended, or all; return when they began."""
    started = time.time()
    with processes.group(command, environments, results.FULL, work, processes.PINNED) as running:
        ends = range(len(running)) if reporter is None else [reporter]
        for number in ends:
            processes.finish(running[number], work, number)
    return started


def _read(name: str, started: float, output: pathlib.Path) -> RunTimes:
    lines = [json.loads(line) for line in output.read_text().splitlines() if line[:1] == "{"]
    (first,) = (line for line in lines if line["event"] == "first")
    ends = [line for line in lines if line["event"] == "epoch"]
    span = ends[-1]["time"] - ends[0]["time"]
    return RunTimes(
        step=span / (workloads.MODELS[name].steps * (len(ends) - 1)),
        start=first["time"] - started,
        loss=ends[-1]["loss"],
    )
