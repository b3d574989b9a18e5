"""Makes one run of a rehearsal on this machine, and reads what it left."""

import asyncio
import dataclasses
import datetime
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from tfparallel import errors, train_log
from tfparallel.backends.local import local_run, record
from tfparallel.compare import progress, throttle
from tfparallel.job_source.source import JobSource
from tfparallel.rehearse import fault_injection, faults, recovery
from tfparallel_operator.api import names
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import environment, outputs, weight_comparison


def run(
    source: JobSource, folder: pathlib.Path, screen: progress.Screen, scenario: faults.Scenario
) -> recovery.TrialRecords:
    """Run a job to its end, with the faults of a scenario.

    Raises:
        SpecError: the job asks for what only a cluster can give.
        errors.Stopped: a signal ended the run.
    """
    throttles = {
        slowdown.replica: throttle.build_command(slowdown.factor) for slowdown in scenario.slowdowns
    }
    injector = fault_injection.Injector(scenario)
    logging = dataclasses.replace(
        source, environment={**source.environment, environment.STEP_LOG: "1"}
    )
    outcome = asyncio.run(
        local_run.run(
            *(logging, folder, screen),
            wrappers=throttles,
            companion=injector.run,
            relayed=injector.network.addresses,
        )
    )
    if outcome.stopped_by is not None:
        raise errors.Stopped(outcome.stopped_by)
    status = outcome.job.status
    failed = conditions.find(status, names.ConditionType.FAILED)
    results = outcome.trained
    if results is None:
        raise ValueError("a job of the shipped trainer has a folder of results")
    return recovery.TrialRecords(
        results=results,
        logs=outcome.layout.logs,
        problem=""
        if status.state is names.State.SUCCEEDED
        else "it did not succeed"
        if failed is None
        else failed.message,
        steps=_read_steps(results / outputs.STEP_LOG),
        log_records=_read_train_log(results / outputs.TRAIN_LOG),
        events=record.read_events(outcome.layout),
        pod_changes=record.read_pod_changes(outcome.layout),
        injections=injector.injections,
    )


def _read_steps(path: pathlib.Path) -> Sequence[recovery.StepEnd]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return ()
    entries = map(json.loads, lines)
    return [
        recovery.StepEnd(
            datetime.datetime.fromtimestamp(entry["time"], datetime.UTC), entry["step"]
        )
        for entry in entries
        if entry["event"] == outputs.StepEvent.STEP
    ]


def _read_train_log(path: pathlib.Path) -> Sequence[train_log.Record]:
    try:
        return train_log.parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return ()


def compare_weights(
    undisturbed: pathlib.Path, disturbed: pathlib.Path
) -> weight_comparison.WeightComparison | None:
    """Compare what two runs trained, in a process that has TensorFlow; None: no checkpoint is left.

    Raises:
        errors.Failure: the process failed.
    """
    if not all((path / outputs.CHECKPOINTS).is_dir() for path in (undisturbed, disturbed)):
        return None
    done = subprocess.run(
        (sys.executable, "-m", weight_comparison.MODULE, str(undisturbed), str(disturbed)),
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise errors.Failure(f"the weights of both runs cannot be compared: {reason}")
    return weight_comparison.WeightComparison.model_validate_json(done.stdout)
