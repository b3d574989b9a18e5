"""Restarts, and starts of a pipeline, in this build and another one.

Each build runs the same job with its own `tfparallel run`, in turns.
"""

import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

from benchmarks import processes, restarts, results, split_start, steps
from testing.operator import local_jobs
from testing.random_kills import kills
from tfparallel_trainer.contract import outputs

SERVER = "ps-0"
_STEPS_BEFORE = 65


def measure_restarts(other: pathlib.Path, size: results.Size) -> list[results.Result]:
    """Kill a worker of each gang, and a parameter server, next to another build.

    Args:
        other: the folder of the other build, with its virtual environment.
        size: how much is run.
    """
    measured = []
    for workers in restarts.GANGS[:1] if size.repeats == 1 else restarts.GANGS:
        what = f"a killed trainer to the next new step, gang of {workers}"
        measured.append(_compare(what, other, size, workers, f"worker-{workers - 1}"))
    what = "a killed parameter server to the next new step, 2 workers"
    return [*measured, _compare(what, other, size, 2, SERVER)]


def measure_starts(other: pathlib.Path, size: results.Size) -> list[results.Result]:
    """Start a pipeline with many microbatches, next to another build.

    Args:
        other: the folder of the other build, with its virtual environment.
        size: how much is run.
    """
    ours, theirs = steps.in_turns(
        lambda: [split_start.start(processes.CLIENT, split_start.MANY_MICROBATCHES)],
        lambda: [split_start.start(_client_of(other), split_start.MANY_MICROBATCHES)],
        size.repeats,
    )
    what = f"{split_start.TITLE}, next to build {_commit_of(other)}"
    return split_start.compare(what, (0.12, 0.5), ours, theirs, "the other build")


def _client_of(other: pathlib.Path) -> list[str]:
    return [f"{other}/.venv/bin/tfparallel"]


def _commit_of(other: pathlib.Path) -> str:
    """The commit of a build, with its date."""
    command = ["git", "-C", str(other), "log", "-1", "--format=%h of %cs"]
    return subprocess.check_output(command, text=True).strip()


def _compare(
    what: str, other: pathlib.Path, size: results.Size, workers: int, victim: str
) -> results.Result:
    return results.ratio(
        f"{what}, next to build {_commit_of(other)}",
        restarts.TARGET,
        *steps.in_turns(
            functools.partial(_sample, processes.CLIENT, workers, victim),
            functools.partial(_sample, _client_of(other), workers, victim),
            size.repeats,
        ),
        "the other build",
    )


def _sample(client: Sequence[str], workers: int, victim: str) -> list[float]:
    mark = local_jobs.new_mark()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        local_jobs.write(folder, restarts.make_job(mark, workers, servers=victim == SERVER))
        shutil.copy(processes.ROOT / "benchmarks/peers/job.py", folder)
        with processes.job(client, folder) as run:

            def reach(step: int) -> float:
                return restarts.await_step(
                    lambda: _read_steps(folder), step, run, folder / "printed"
                )

            reach(_STEPS_BEFORE)
            os.kill(_find_trainer(mark, victim), signal.SIGKILL)
            killed_at = time.time()
            # A step that had begun may still be written.
            lost = max(step for step, moment in _read_steps(folder) if moment <= killed_at)
            return [reach(lost + 2) - killed_at]


def _find_trainer(mark: str, replica: str) -> int:
    """Return the process of a replica that trains. If it has an agent, that is its parent."""
    candidates = [
        pid
        for pid in filter(kills.is_trainer, local_jobs.processes(mark))
        if _read_task(pid) == replica
    ]
    [trainer] = set(candidates) - set(map(kills.parent_of, candidates))
    return trainer


def _read_task(pid: int) -> str:
    variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [config] = [line for line in variables if line.startswith(b"TF_CONFIG=")]
    task = json.loads(config.partition(b"=")[2])["task"]
    return f"{task['type']}-{task['index']}"


def _read_steps(folder: pathlib.Path) -> list[tuple[int, float]]:
    """Numbers of the steps, and when they ended, in seconds since 1970.

    Logs of older builds have no numbers, but say with which step each attempt begins.
    """
    output = folder / "out/claims/c/job"
    begins = [
        int(record["step"])
        for record in processes.read_records(output / outputs.TRAIN_LOG)
        if record["event"] == outputs.TrainEvent.FIRST_STEP
    ]
    attempts: list[list[float]] = []
    for record in processes.read_records(output / outputs.STEP_LOG):
        if record["event"] == outputs.StepEvent.MODEL:
            attempts.append([])
        elif record["event"] == outputs.StepEvent.STEP:
            attempts[-1].append(float(record["time"]))
    return [
        (number, moment)
        for first, moments in zip(begins, attempts, strict=False)
        for number, moment in enumerate(moments, first)
    ]
