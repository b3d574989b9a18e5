"""From the command of a job with stages to the end of its first step.

The graph of a step has once what repeats for each microbatch, so a start takes hardly more time and
memory with many microbatches than with few.
"""

import contextlib
import dataclasses
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import processes, results
from benchmarks.operators import usage
from testing.operator import local_jobs
from tfparallel.compare import network_usage
from tfparallel_trainer.contract import environment, outputs

COMMAND = (sys.executable, "-m", "tfparallel")
STAGES = 2
FEW, MANY = 16, 64
"""Microbatches; many of them have one example each."""
WHAT = f"start to the first step, {STAGES} stages, {MANY} microbatches"
_MODEL = {"BENCHMARK_MODEL": "decoder", "BENCHMARK_BLOCKS": "6", "BENCHMARK_WIDTH": "256"}
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """What the start of a job took."""

    seconds: float
    peak: float
    """MB of the process that had the most memory at one time."""


def measure(size: results.Size) -> list[results.Result]:
    """Start jobs with few and with many microbatches."""
    few, many = in_turns([(COMMAND, FEW), (COMMAND, MANY)], size.repeats)
    return compare(WHAT, (1.15, 1.15), many, few, f"{FEW} microbatches")


def in_turns(sides: Sequence[tuple[Sequence[str], int]], repeats: int) -> list[list[Start]]:
    """Start jobs with so many microbatches, each with the command of a build."""
    starts: list[list[Start]] = [[] for _ in sides]
    for _ in range(repeats):
        for side, (command, microbatches) in zip(starts, sides, strict=True):
            side.append(start(command, microbatches))
    return starts


def start(command: Sequence[str], microbatches: int) -> Start:
    """Run a job until the end of its first step; `command` is that of its build."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        local_jobs.write(folder, _job(microbatches))
        shutil.copy(processes.MODELS / "planned.py", folder)
        began, peak = time.time(), 0.0
        with (folder / "printed").open("wb") as printed:
            run = subprocess.Popen(
                [*command, "run", "job.yaml", "--output", "out"],
                cwd=folder,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
        while run.poll() is None:
            peak = max([peak, *map(_peak, network_usage.descendants(run.pid))])
            time.sleep(_POLL_SECONDS)
        if run.returncode:
            raise RuntimeError((folder / "printed").read_text()[-3000:])
        log = folder / "out/claims/c/job" / outputs.STEP_LOG
        first = next(
            record
            for record in processes.read_records(log)
            if record["event"] == outputs.StepEvent.STEP
        )
        return Start(float(first["time"]) - began, peak)


def compare(
    what: str,
    targets: tuple[float, float],
    ours: Sequence[Start],
    theirs: Sequence[Start],
    other: str,
) -> list[results.Result]:
    """Compare starts by the medians of their seconds and of their memory, each with its target."""
    seconds, memory = targets
    peaks = [[sample.peak for sample in samples] for samples in (ours, theirs)]
    mine, others = map(statistics.median, peaks)
    return [
        results.ratio(
            what,
            seconds,
            [sample.seconds for sample in ours],
            [sample.seconds for sample in theirs],
            other,
        ),
        results.Result(
            what=f"memory of the {what}",
            target=memory,
            bound=results.Bound.AT_MOST,
            value=mine / others,
            unit=" x",
            detail=f"{mine:.0f} MB against {others:.0f} MB of {other}, in the largest process",
        ),
    ]


def _job(microbatches: int) -> dict[str, object]:
    variables = {
        environment.STEP_LOG: "1",
        "BENCHMARK_EXAMPLES": str(MANY),
        **_MODEL,
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
    }
    listed = [{"name": name, "value": value} for name, value in variables.items()]
    template = {"spec": {"containers": [{"name": "tensorflow", "env": listed}]}}
    return local_jobs.job(
        {"Worker": {"replicas": STAGES, "template": template}},
        strategy="ModelSplit",
        mesh={"stage": STAGES, "microbatches": microbatches},
        trainer={
            "module": "planned.py",
            "source": {"configMap": {"name": "code"}},
            "steps": 1,
            "globalBatchSize": MANY,
            "checkpoint": {"claim": "c"},
        },
    )


def _peak(pid: int) -> float:
    """The most MB that a process has had; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        return usage.most_resident(pid)
    return 0.0
