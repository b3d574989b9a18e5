"""`python -m benchmarks.pages.split_costs`: measures what the examples of model split cost.

It writes the tables of docs/how-to/model-split-examples.md, in some minutes, and draws a pipeline.
Each device is a process with one thread for computing, so that what devices send each other goes
over TCP, where it is counted.
CPU time is counted, not time: other work on the machine does not change it much.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import yaml

from benchmarks import page as benchmarks_page
from benchmarks.pages import plans, redraw
from testing import pages, paths
from tfparallel.compare import network_usage
from tfparallel.terminal.placement import shares
from tfparallel_operator.api import job_status
from tfparallel_trainer.contract import environment, outputs, plan, progress

MACHINE = "machine"
"""Names the block that tells where all was measured."""
PIPELINE = "split-deep-cnn"
"""The example whose pipeline is drawn as it was measured."""
STEPS = 24
"""Of a run; those of which no picture is wanted end before."""
FROM, TO = 5, 20
"""The steps between which both are counted: the first ones trace and meet, too."""
WHOLE = ("spec.strategy=null", "spec.mesh=null", "spec.tfReplicaSpecs.Worker.replicas=1")
HEAD = (
    "| | weights of a device | with gradients and slots | activations | sent in a step | "
    "stages busy (planned) | CPU time of a step |",
    "|---|---|---|---|---|---|---|",
)
_ENVIRONMENT = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What one run cost."""

    worked: float
    """Seconds of all processors in a step."""
    sent: float
    """Bytes of a step, by all devices together."""
    placement: job_status.PlacementStatus | None
    pipeline: plan.Pipeline | None
    """How its stages worked, of a run that came to its end."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Reached:
    """What all processes had done at the end of a step."""

    sent: int
    """Bytes."""
    worked: float
    """Seconds of all processors."""


def _command(file: pathlib.Path, changes: Sequence[str]) -> list[str]:
    variables = {
        environment.STEP_LOG: "1",
        environment.AGENT_URL: "",  # an agent's copies of the state are sent, too
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    container = {"name": "tensorflow", "env": env}
    changes = (
        "spec.trainer.epochs=null",
        f"spec.trainer.steps={STEPS}",
        'spec.trainer.verify="Off"',  # a check sends all weights
        "spec.trainer.stepsPerExecution=1",  # a call of several steps is traced between them
        f"spec.tfReplicaSpecs.Worker.template={json.dumps({'spec': {'containers': [container]}})}",
        *changes,
    )
    command = [sys.executable, "-m", "tfparallel", "run", str(file), "--output", "out"]
    return [*command, *(f"--set={change}" for change in changes)]


def measure(file: pathlib.Path, changes: Sequence[str]) -> Measured:
    """Run a job with changes for some steps."""
    job = yaml.safe_load(file.read_text(encoding="utf-8"))
    claim = job["spec"]["trainer"]["checkpoint"]["claim"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        out = pathlib.Path(folder, "out")
        log = out / "claims" / claim / job["metadata"]["name"] / outputs.STEP_LOG
        meter = network_usage.NetworkMeter(os.getpid())
        running = subprocess.Popen(
            _command(file, changes),
            cwd=folder,
            env={**os.environ, **_ENVIRONMENT},
            stdout=output,
            stderr=output,
        )
        begin, end = (_reached(running, log, step, meter) for step in (FROM, TO))
        while running.poll() is None and _reported(out) < TO:
            time.sleep(0.1)
        if file.parent.name != PIPELINE:
            running.terminate()
        if running.wait() not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            output.seek(0)
            raise RuntimeError(f"{file} failed: {output.read().decode()[-3000:]}")
        left = log.parent.parent / outputs.PIPELINE
        pipeline = plan.Pipeline.model_validate_json(left.read_bytes()) if left.exists() else None
        status = json.loads((out / "status.json").read_text(encoding="utf-8"))
    placed = status.get("placement")
    return Measured(
        worked=(end.worked - begin.worked) / (TO - FROM),
        sent=(end.sent - begin.sent) / (TO - FROM),
        placement=placed and job_status.PlacementStatus.model_validate(placed),
        pipeline=pipeline,
    )


def _reached(
    running: "subprocess.Popen[bytes]",
    log: pathlib.Path,
    step: int,
    meter: network_usage.NetworkMeter,
) -> _Reached:
    """Wait for the end of a step."""
    while running.poll() is None and _steps(log) < step:
        time.sleep(0.002)
    counted = meter.read()
    return _Reached(
        sent=0 if counted is None else counted.bytes,
        worked=sum(_worked(pid) for pid in network_usage.descendants(running.pid)) / 1e9,
    )


def _worked(pid: int) -> int:
    """Nanoseconds for which the threads of a process have run."""
    nanoseconds = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds


def _steps(log: pathlib.Path) -> int:
    """How many steps have ended."""
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return sum(record["event"] == outputs.StepEvent.STEP for record in records)


def _reported(out: pathlib.Path) -> int:
    """The step that the status reports, with the placement; 0 before the first."""
    try:
        status = json.loads((out / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it is being written
        return 0
    return int(status.get("progress", {}).get("step", 0))


def table(folder: str) -> str:
    """Measure all jobs of an example beside the whole model on one device."""
    first = paths.example_jobs(folder)[0]
    whole = measure(first, WHOLE)
    alone = plans.planned(first, whole=True)
    lines = [*HEAD, _row("one device", alone, whole, whole)]
    for file in paths.example_jobs(folder):
        planned = plans.planned(file)
        measured = measure(file, list(_changes(file, planned)))
        lines.append(_row(f"`{file.name}`: {planned.mesh}", planned, measured, whole))
        print("\n".join(lines), flush=True)
        if folder == PIPELINE and measured.pipeline is not None:
            redraw.save_pipeline(folder, measured.pipeline)
    return "\n".join(lines) + "\n"


def _changes(file: pathlib.Path, planned: plan.Plan) -> Iterator[str]:
    """A process for each device; where the planner chooses, what it has chosen for the job."""
    yield f"spec.tfReplicaSpecs.Worker.replicas={len(planned.ranks)}"
    if plans.question(file).mesh is None:
        cuts = [stage.nodes[0] for stage in planned.stages[1:]]
        chosen = {**planned.mesh.model_dump(), "microbatches": planned.microbatches, "cuts": cuts}
        yield f"spec.mesh={json.dumps(chosen)}"


def _row(name: str, planned: plan.Plan, measured: Measured, whole: Measured) -> str:
    """A row of the table: of the fullest device."""
    holds = [stage.holds for stage in planned.stages]
    weights = max(stage.parameters for stage in holds)
    busy = "-"
    if measured.placement is not None:
        weights = max(stage.parameter_bytes for stage in measured.placement.stages)
        if len(planned.stages) > 1:
            busy_shares = zip(
                shares([stage.busy_seconds for stage in measured.placement.stages]),
                _planned(planned),
                strict=True,
            )
            busy = ", ".join(f"{share} ({planned})" for share, planned in busy_shares)
    cells = (
        name,
        progress.format_bytes(weights),
        progress.format_bytes(
            max(stage.parameters + stage.gradients + stage.slots for stage in holds)
        ),
        progress.format_bytes(max(stage.activations for stage in holds)),
        progress.format_bytes(round(measured.sent)) if measured.placement is not None else "-",
        busy,
        f"{1000 * measured.worked:.3g} ms, {measured.worked / whole.worked:.2f} x",
    )
    return f"| {' | '.join(cells)} |"


def _planned(planned: plan.Plan) -> list[str]:
    seconds = [stage.forward_seconds + stage.backward_seconds for stage in planned.stages]
    return shares([str(seconds_of_stage) for seconds_of_stage in seconds])


def machine(load: float) -> str:
    """Where it was measured."""
    return f"{benchmarks_page.machine()}; load {load:.1f}\nbefore the start.\n"


def main() -> None:
    """Measure all examples, or those that are named."""
    load, _, _ = os.getloadavg()
    _write(MACHINE, machine(load))
    for name in sys.argv[1:] or plans.DRAWN:
        _write(name, table(name))
    print(f"wrote {plans.SPLIT_PAGE}")
    redraw.main()


def _write(name: str, content: str) -> None:
    page = plans.SPLIT_PAGE.read_text(encoding="utf-8")
    plans.SPLIT_PAGE.write_text(pages.with_section(page, name, content), encoding="utf-8")


if __name__ == "__main__":
    main()
