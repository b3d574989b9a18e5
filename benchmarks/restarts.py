"""From the kill of a trainer to the next new step, for gangs on this machine.

The trainer restarts in place: agents fork the next process. For comparison, the same job starts new
processes, as a command of the user's own does. Both have a checkpoint of each epoch.
"""

import asyncio
import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import tempfile
import time

from benchmarks import processes, results, steps
from benchmarks.peers import workloads
from testing.operator import local_jobs
from tfparallel.backends.local import local_run
from tfparallel.job_source import source
from tfparallel_trainer.contract import environment, outputs

MODEL = "cnn"
GANGS = (2, 4)
TARGET = 0.45
"""Of the time with new processes."""
_AFTER_CHECKPOINT = 5
"""Steps after a checkpoint when a trainer is killed: those are lost."""
_LIMIT_SECONDS = 300.0
_AGAIN_SECONDS = 0.02
_NEW_PROCESS = ("env",)
"""A program that starts a replica's command. A replica that it starts has no agent."""


def measure(size: results.Size) -> list[results.Result]:
    """Kill a trainer of each gang with and without agents, in turns."""
    gangs = GANGS if size.repeats > 1 else GANGS[:1]
    return [_in_place(workers, size.repeats) for workers in gangs]


def _in_place(workers: int, repeats: int) -> results.Result:
    return results.ratio(
        f"a killed trainer to the next new step, gang of {workers}",
        TARGET,
        *steps.in_turns(
            functools.partial(_ours, workers),
            functools.partial(_ours, workers, wrapper=_NEW_PROCESS),
            repeats,
        ),
        "new processes",
    )


def _ours(workers: int, wrapper: tuple[str, ...] = ()) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        return [asyncio.run(_kill_one(folder, workers, wrapper))]


async def _kill_one(folder: pathlib.Path, workers: int, wrapper: tuple[str, ...]) -> float:
    """Run a job, kill the trainer of its last worker, and return the seconds to a new step."""
    mark = local_jobs.new_mark()
    log = folder / "out" / "claims" / "c" / "job" / outputs.STEP_LOG
    wrappers = {f"worker-{index}": wrapper for index in range(workers)} if wrapper else {}
    shutil.copy(processes.ROOT / "benchmarks/peers/job.py", folder)
    job_source = source.read(local_jobs.write(folder, _job(mark, workers)))
    recorder = local_jobs.RecordingWatcher()
    running = asyncio.create_task(
        local_run.run(job_source, folder / "out", recorder, wrappers=wrappers)
    )
    deadline = time.monotonic() + _LIMIT_SECONDS

    async def reach(step: int) -> float:
        while not (moments := [moment for number, moment in _steps(log) if number >= step]):
            if running.done() or time.monotonic() > deadline:
                raise RuntimeError(f"the job did not reach step {step}: {recorder.lines[-20:]}")
            await asyncio.sleep(_AGAIN_SECONDS)
        return moments[0]

    try:
        await reach(workloads.MODELS[MODEL].steps + _AFTER_CHECKPOINT)
        os.kill(local_jobs.chain(mark, workers - 1)[-1], signal.SIGKILL)
        killed_at = time.time()
        # A step that had begun may still be written.
        lost = max(step for step, moment in _steps(log) if moment <= killed_at)
        return await reach(lost + 2) - killed_at
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        while local_jobs.processes(mark):
            await asyncio.sleep(_AGAIN_SECONDS)
        await asyncio.sleep(_AGAIN_SECONDS)  # the loop hears of their ends


def _job(mark: str, workers: int) -> dict[str, object]:
    variables = {
        local_jobs.MARK: mark,
        environment.STEP_LOG: "1",
        "BENCHMARK_MODEL": MODEL,
        "PYTHONPATH": str(processes.ROOT),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
    }
    listed = [{"name": name, "value": value} for name, value in variables.items()]
    worker = {"spec": {"containers": [{"name": "tensorflow", "env": listed}]}}
    model = workloads.MODELS[MODEL]
    trainer = {
        "module": "job.py",
        "source": {"configMap": {"name": "code"}},
        "epochs": 1000,
        "globalBatchSize": model.batch,
        "verify": "Off",
        "checkpoint": {"claim": "c", "everySteps": model.steps},
    }
    return local_jobs.job({"Worker": {"replicas": workers, "template": worker}}, trainer=trainer)


def _steps(log: pathlib.Path) -> list[tuple[int, float]]:
    """Numbers of the steps, and when they ended, in seconds since 1970."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [(int(record["step"]), float(record["time"])) for record in records if "step" in record]
