"""From the command of a job with stages to the end of its first step.

The graph of a step has once what repeats for each microbatch, so a start takes hardly more time and
memory with many microbatches than with few.
"""

import contextlib
import dataclasses
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence

from benchmarks import processes, results, steps
from benchmarks.operators import usage
from testing.operator import local_jobs
from tfparallel.compare import network_usage
from tfparallel_trainer.contract import environment, outputs

STAGES = 2
FEW_MICROBATCHES, MANY_MICROBATCHES = 16, 64
"""Of a batch; the many have one example each."""
TITLE = f"start to the first step, {STAGES} stages, {MANY_MICROBATCHES} microbatches"
_MODEL_VARIABLES = {"BENCHMARK_MODEL": "decoder", "BENCHMARK_BLOCKS": "6", "BENCHMARK_WIDTH": "256"}
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """What the start of a job took."""

    seconds: float
    peak: float
    """MB of the process that had the most memory at one time."""


def measure(size: results.Size) -> list[results.Result]:
    """Start jobs with few and with many microbatches."""
    many, few = steps.in_turns(
        lambda: [start(processes.CLIENT, MANY_MICROBATCHES)],
        lambda: [start(processes.CLIENT, FEW_MICROBATCHES)],
        size.repeats,
    )
    return compare(TITLE, (1.15, 1.15), many, few, f"{FEW_MICROBATCHES} microbatches")


def start(client: Sequence[str], microbatches: int) -> Start:
    """Run a job until the end of its first step; `client` is the command line of its build."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        local_jobs.write(folder, _job(microbatches))
        shutil.copy(processes.MODELS / "planned.py", folder)
        began, peak = time.time(), 0.0
        with processes.job(client, folder) as run:
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
        "BENCHMARK_EXAMPLES": str(MANY_MICROBATCHES),
        **_MODEL_VARIABLES,
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
            "globalBatchSize": MANY_MICROBATCHES,
            "checkpoint": {"claim": "c"},
        },
    )


def _peak(pid: int) -> float:
    """The most MB that a process has had; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        return usage.most_resident(pid)
    return 0.0
