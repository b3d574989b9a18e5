"""From the kill of a trainer to the next new step, for gangs on this machine.

The trainer restarts in place: agents fork the next process. For comparison, the same job starts new
processes, as a command of the user's own does, and PyTorch's torchrun restarts the same model over
gloo. All have a checkpoint of each epoch.
"""

import asyncio
import contextlib
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from benchmarks import processes, results, steps
from benchmarks.peers import competitors, workloads
from testing.operator import local_jobs
from tfparallel.backends.local import local_run, ports
from tfparallel.job_source import source
from tfparallel_trainer.contract import environment, outputs

MODEL = "cnn"
GANGS = (2, 4, 8)
TARGET = 0.45
"""Of the time with new processes."""
TORCHRUN_TARGET = 0.5
"""Of torchrun's time."""
STEP_LOG = f"out/claims/c/job/{outputs.STEP_LOG}"
_AFTER_CHECKPOINT = 5
"""Steps after a checkpoint when a trainer is killed: those are lost."""
_LIMIT_SECONDS = 600.0
_AGAIN_SECONDS = 0.02
NEW_PROCESSES = ("env",)
"""A program that starts a replica's command. A replica that it starts has no agent."""


def measure(size: results.Size) -> list[results.Result]:
    """Kill a trainer of each gang with and without agents, and one of torchrun's, in turns."""
    if size.repeats == 1:
        return [_in_place(GANGS[0], 1)]
    measured = [_in_place(workers, size.repeats) for workers in GANGS]
    return [*measured, _beside_torchrun(size.repeats)]


def _in_place(workers: int, repeats: int) -> results.Result:
    return results.ratio(
        f"a killed trainer to the next new step, gang of {workers}",
        TARGET,
        *steps.in_turns(
            functools.partial(_ours, workers),
            functools.partial(_ours, workers, wrapper=NEW_PROCESSES),
            repeats,
        ),
        "new processes",
    )


def _beside_torchrun(repeats: int) -> results.Result:
    with tempfile.TemporaryDirectory() as name:
        data = pathlib.Path(name)
        competitors.prepare(MODEL, data)
        return results.ratio(
            f"a killed trainer to the next new step, gang of {GANGS[0]}, next to PyTorch",
            TORCHRUN_TARGET,
            *steps.in_turns(
                functools.partial(_ours, GANGS[0]),
                functools.partial(_torchrun, data, GANGS[0]),
                repeats,
            ),
            "torchrun",
        )


def _ours(workers: int, wrapper: tuple[str, ...] = ()) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        return [asyncio.run(_kill_one(folder, workers, wrapper))]


async def _kill_one(folder: pathlib.Path, workers: int, wrapper: tuple[str, ...]) -> float:
    """Run a job, kill the trainer of its last worker, and return the seconds to a new step."""
    mark = local_jobs.new_mark()
    shutil.copy(processes.ROOT / "benchmarks/peers/job.py", folder)
    async with running(folder, make_job(mark, workers, verify="Off"), wrapper) as reach:
        await reach(workloads.MODELS[MODEL].steps + _AFTER_CHECKPOINT)
        os.kill(local_jobs.chain(mark, workers - 1)[-1], signal.SIGKILL)
        killed_at = time.time()
        # A step that had begun may still be written.
        lost = max(step for step, moment in read_steps(folder / STEP_LOG) if moment <= killed_at)
        return await reach(lost + 2) - killed_at


@contextlib.asynccontextmanager
async def running(
    folder: pathlib.Path,
    job: Mapping[str, Any],
    wrapper: tuple[str, ...] = (),
    *,
    poll: float = _AGAIN_SECONDS,
) -> AsyncIterator[Callable[[int], Awaitable[float]]]:
    """Run a job of workers, and end it as a user does.

    Gives a function that waits for a step, and returns when it ended, in seconds since 1970. It
    reads the whole log each `poll` seconds, which takes the longer the more steps it has.
    """
    recorder = local_jobs.RecordingWatcher()
    replicas = job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]
    wrappers = {f"worker-{index}": wrapper for index in range(replicas)} if wrapper else {}
    job_source = source.read(local_jobs.write(folder, job))
    run = asyncio.create_task(
        local_run.run(job_source, folder / "out", recorder, wrappers=wrappers)
    )
    deadline = time.monotonic() + _LIMIT_SECONDS

    async def reach(step: int) -> float:
        log = folder / STEP_LOG
        while not (moments := [moment for number, moment in read_steps(log) if number >= step]):
            if run.done() or time.monotonic() > deadline:
                raise RuntimeError(f"the job did not reach step {step}: {recorder.lines[-20:]}")
            await asyncio.sleep(poll)
        return moments[0]

    try:
        yield reach
    finally:
        if not run.done():
            signal.raise_signal(signal.SIGTERM)  # as a user ends it
        await run


def make_job(
    mark: str,
    workers: int,
    variables: Mapping[str, str] | None = None,
    *,
    servers: bool = False,
    **trainer: object,
) -> dict[str, Any]:
    """Return a job whose processes have a mark.

    Args:
        mark: the value of their variable.
        workers: how many.
        variables: further ones of the processes.
        servers: whether the job has a parameter server and a chief.
        trainer: fields of `trainer` that differ.
    """
    all_variables = {
        **(variables or {}),
        local_jobs.MARK: mark,
        environment.STEP_LOG: "1",
        "BENCHMARK_MODEL": MODEL,
        "PYTHONPATH": str(processes.ROOT),
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
    }
    listed = [{"name": name, "value": value} for name, value in all_variables.items()]
    template = {"spec": {"containers": [{"name": "tensorflow", "env": listed}]}}
    roles: dict[str, object] = {"Worker": {"replicas": workers, "template": template}}
    if servers:
        roles |= {"Chief": {"template": template}, "PS": {"template": template}}
    model = workloads.MODELS[MODEL]
    trainer = {
        "module": "job.py",
        "source": {"configMap": {"name": "code"}},
        "epochs": 1000,
        "globalBatchSize": model.batch,
        "checkpoint": {"claim": "c", "everySteps": model.steps},
    } | trainer
    return local_jobs.job(roles, trainer=trainer)


def read_steps(log: pathlib.Path) -> list[tuple[int, float]]:
    """Numbers of the steps, and when they ended, in seconds since 1970."""
    return [
        (int(record["step"]), float(record["time"]))
        for record in processes.read_records(log)
        if "step" in record
    ]


def _torchrun(data: pathlib.Path, count: int) -> list[float]:
    """Run torchrun, kill its last worker, and return the seconds to a new step."""
    with tempfile.TemporaryDirectory() as name, _elastic(data, pathlib.Path(name), count) as agent:
        folder = pathlib.Path(name)
        log = folder / "steps.jsonl"

        def reach(step: int) -> float:
            return await_step(lambda: read_steps(log), step, agent, folder / "output")

        reach(workloads.MODELS[MODEL].steps + _AFTER_CHECKPOINT)
        os.kill(_find_worker(agent.pid, count - 1), signal.SIGKILL)
        killed_at = time.time()
        lost = max(step for step, moment in read_steps(log) if moment <= killed_at)
        return [reach(lost + 2) - killed_at]


@contextlib.contextmanager
def _elastic(
    data: pathlib.Path, folder: pathlib.Path, count: int
) -> Iterator[subprocess.Popen[bytes]]:
    (port,) = ports.allocate(1)
    command = [competitors.interpreter("torch"), "-m", "torch.distributed.run"]
    options = [f"--nproc-per-node={count}", "--max-restarts=3", f"--master-port={port}"]
    script = ["-m", "benchmarks.peers.torch_elastic", str(folder)]
    variables = {
        "CONTEST_MODEL": MODEL,
        "CONTEST_RANK": "0",
        "CONTEST_ADDRESSES": ",".join(["127.0.0.1"] * count),
        "CONTEST_FOLDER": str(data),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "output").open("wb") as out:
        agent = subprocess.Popen(
            [*command, *options, *script],
            cwd=processes.ROOT,
            env={**os.environ, **variables},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield agent
    finally:
        agent.terminate()  # it ends its workers
        agent.wait()


def _find_worker(agent: int, rank: int) -> int:
    """Return the process of a rank among the children of torchrun."""
    children = pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    variable = f"RANK={rank}".encode()
    for pid in children:
        if variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return int(pid)
    raise RuntimeError(f"torchrun has no process of rank {rank}")


def await_step(
    read: Callable[[], list[tuple[int, float]]],
    step: int,
    run: subprocess.Popen[bytes],
    printed: pathlib.Path,
) -> float:
    """Wait for a step of a program.

    Args:
        read: returns numbers of the steps that have ended, and when, in seconds since 1970.
        step: its number.
        run: the program.
        printed: what it has printed, for the message if it ends before.

    Returns:
        When the step ended, in seconds since 1970.
    """
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not (moments := [moment for number, moment in read() if number >= step]):
        if run.poll() is not None or time.monotonic() > deadline:
            text = printed.read_text(errors="replace")
            raise RuntimeError(f"{run.args!r} did not reach step {step}: {text[-2000:]}")
        time.sleep(_AGAIN_SECONDS)
    return moments[0]
