"""Starts what is measured as processes of this machine, and reads when what happened."""

import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import results
from testing.trainer import launch
from tfparallel_trainer.contract import environment, outputs

ROOT = launch.REPOSITORY
MODELS = ROOT / "benchmarks" / "models"
TRAINER = (sys.executable, "-m", "tfparallel_trainer")
CLIENT = (sys.executable, "-m", "tfparallel")
"""The command line of this build."""
_LIMIT_SECONDS = 600.0
PINNED = [("taskset", "-c", core) for core in sorted(os.sched_getaffinity(0))]
"""Commands that start another one on each of the cores."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    kind: str
    moment: float
    """Seconds since 1970."""
    facts: dict[str, Any]

    def number(self, name: str) -> float:
        """A fact that is a number."""
        return float(self.facts[name])


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What a run of several processes reported."""

    started: float
    """Seconds since 1970, just before the first process was started."""
    events: list[Event]

    def of_kind(self, kind: str) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.events if event.kind == kind]


def script(
    name: str,
    arguments: Sequence[object],
    size: results.Size,
    processes: int = 1,
    *,
    pinned: bool = False,
    more: dict[str, str] | None = None,
) -> Run:
    """Run a script of `benchmarks.scripts`; returns what its first process reported.

    `more` are further variables of the environment.
    """
    command = [sys.executable, "-m", f"benchmarks.scripts.{name}", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        environments = launch.environments(
            pathlib.Path(folder), MODELS, {}, processes=processes, more=more or {}
        )
        if processes == 1:
            environments[0].pop(environment.TF_CONFIG)
        started, out = _finish(command, environments, size, pathlib.Path(folder), pinned=pinned)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return Run(started, [Event(line.pop("event"), line.pop("time"), line) for line in lines])


def trainer(
    settings: dict[str, object],
    size: results.Size,
    *,
    processes: int = 1,
    devices: int = 1,
    source: pathlib.Path = MODELS,
    more: dict[str, str] | None = None,
    mesh: dict[str, object] | None = None,
    pinned: bool = False,
) -> Run:
    """Run the trainer; gives what its chief recorded.

    Args:
        settings: of the job's `trainer`.
        size: how much is run.
        processes: how many.
        devices: of each process.
        source: the folder of the user's module.
        more: further variables of the environment; with a step log its events are returned, too.
        mesh: that of ModelSplit; absent: the strategy is MultiWorkerMirrored.
        pinned: whether each process has a core of its own, as far as there are enough.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environments = launch.environments(
            folder,
            source,
            settings,
            processes=processes,
            devices=devices,
            strategy="MultiWorkerMirrored" if mesh is None else "ModelSplit",
            mesh=mesh,
            more=more or {},
        )
        started, _ = _finish(TRAINER, environments, size, folder, pinned=pinned)
        return Run(started, read(folder / "output"))


def read(output: pathlib.Path) -> list[Event]:
    """What a run recorded in its output directory."""
    events = []
    for line in (output / outputs.TRAIN_LOG).read_text().splitlines():
        record = json.loads(line)
        moment = datetime.datetime.fromisoformat(record.pop("time")).timestamp()
        events.append(Event(record.pop("event"), moment, record))
    steps = output / outputs.STEP_LOG
    for line in steps.read_text().splitlines() if steps.exists() else ():
        record = json.loads(line)
        events.append(Event(record.pop("event"), record.pop("time"), record))
    return events


def read_records(log: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a log that is being written, without a line that is not yet whole."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@contextlib.contextmanager
def job(client: Sequence[str], folder: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `job.yaml` of a folder with a build's command line, and end it; it writes `printed`."""
    with (folder / "printed").open("wb") as out:
        run = subprocess.Popen(
            [*client, "run", "job.yaml", "--output", "out"],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield run
    finally:
        run.terminate()
        run.wait()


@contextlib.contextmanager
def group(
    command: Sequence[str],
    environments: Sequence[dict[str, str]],
    size: results.Size,
    folder: pathlib.Path,
    prefixes: Sequence[Sequence[object]] = (),
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes, and end those that are left; they write to 0.out, 0.err, …

    Args:
        command: what each of them runs.
        environments: one for each.
        size: how much is run.
        folder: where they write.
        prefixes: commands that start the command, in turns; none: it is started as it is.
    """
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, variables in enumerate(environments):
            prefix = prefixes[number % len(prefixes)] if prefixes else ()
            whole = [*map(str, prefix), *command]
            with (
                (folder / f"{number}.out").open("wb") as out,
                (folder / f"{number}.err").open("wb") as err,
            ):
                running.append(
                    subprocess.Popen(
                        whole, cwd=ROOT, env={**_base(size), **variables}, stdout=out, stderr=err
                    )
                )
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def finished(running: Sequence[subprocess.Popen[bytes]], folder: pathlib.Path) -> None:
    """Wait for processes to end well."""
    for number, process in enumerate(running):
        finish(process, folder, number)


def finish(process: subprocess.Popen[bytes], folder: pathlib.Path, number: int) -> None:
    """Wait for the process of a number to end well."""
    if process.wait(_LIMIT_SECONDS):
        errors = (folder / f"{number}.err").read_text()[-2000:]
        raise RuntimeError(f"process {number} ended with {process.returncode}: {errors}")


@contextlib.contextmanager
def slowed(process: subprocess.Popen[bytes], factor: int) -> Iterator[None]:
    """Let a process run only one part of `factor` of the time, by stopping it again and again."""
    over = threading.Event()
    quantum = 0.01

    def stop_and_go() -> None:
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            done = over.wait(quantum * (factor - 1))
            process.send_signal(signal.SIGCONT)
            if done or over.wait(quantum):
                return

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _finish(
    command: Sequence[str],
    environments: Sequence[dict[str, str]],
    size: results.Size,
    folder: pathlib.Path,
    *,
    pinned: bool = False,
) -> tuple[float, str]:
    started = time.time()
    prefixes = PINNED if pinned else ()
    with group(command, environments, size, folder, prefixes) as running:
        finished(running, folder)
    return started, (folder / "0.out").read_text()


def _base(size: results.Size) -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "BENCHMARK_EXAMPLES": str(size.examples),
        "BENCHMARK_WIDTH": str(size.width),
        "BENCHMARK_MEGABYTES": str(size.megabytes),
    }
