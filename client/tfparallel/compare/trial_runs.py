"""Makes the runs of a comparison, one after the other, on this machine."""

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

from tfparallel import errors
from tfparallel.backends.local import local_run as local_run
from tfparallel.compare import (
    machine_load,
    measure,
    network_usage,
    progress,
    throttle,
    trial_jobs,
    trial_records,
)
from tfparallel_operator.api import load, names
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import outputs

_TRAFFIC_SECONDS = 0.2
"""How often connections are looked at: about a thousandth of a core."""


def run_all(
    trials: Sequence[trial_jobs.Trial],
    design: trial_jobs.Design,
    folder: pathlib.Path,
    screen: progress.Screen,
    target: measure.Target | None,
) -> Mapping[trial_jobs.Variant, Sequence[trial_records.TrialRun]]:
    """Make all runs; each leaves its results in a folder of its own.

    Raises:
        errors.Failure: a run failed.
        errors.Stopped: the comparison was interrupted; no process is left.
        SpecError: the job asks for what only a cluster can give, or the target for a metric that
            the runs do not have.
    """
    runs: dict[trial_jobs.Variant, list[trial_records.TrialRun]] = {
        variant: [] for variant in design.variants
    }
    for number, trial in enumerate(trials, 1):
        screen.begin(number, f"{trial.variant.name}, seed {trial.seed}")
        factors = design.slowed if trial.variant.slow else {}
        throttles = {name: throttle.build_command(factor) for name, factor in factors.items()}
        run = asyncio.run(_run(trial, throttles, folder / trial.folder, screen))
        runs[trial.variant].append(run)
        screen.end(run)
        if target is not None:
            _check(target, run)
    return runs


def _check(target: measure.Target, run: trial_records.TrialRun) -> None:
    metrics = {name for point in measure.points(run) for name in point.values}
    if target.metric not in metrics:
        raise load.SpecError(
            f"--target {target.metric}: the runs have {', '.join(sorted(metrics))}; give one of"
            " them"
        )


async def _run(
    trial: trial_jobs.Trial,
    throttles: Mapping[str, Sequence[str]],
    folder: pathlib.Path,
    screen: progress.Screen,
) -> trial_records.TrialRun:
    traffic: list[trial_records.Traffic] = []
    load_meter = machine_load.LoadMeter()
    with _watched(traffic):
        outcome = await local_run.run(trial.source, folder, screen, wrappers=throttles)
    others = load_meter.others()
    if outcome.stopped_by is not None:
        raise errors.Stopped(outcome.stopped_by)
    status = outcome.job.status
    if status.state is not names.State.SUCCEEDED or outcome.trained is None:
        failed = conditions.find(status, names.ConditionType.FAILED)
        why = "it did not succeed" if failed is None else failed.message
        raise errors.Failure(f"{screen.what}: {why}; its logs are in {outcome.layout.logs}")
    step_log = outcome.trained / outputs.STEP_LOG
    summary = outcome.trained / outputs.SUMMARY
    try:
        run = trial_records.parse(
            step_log.read_text(encoding="utf-8"),
            summary.read_text(encoding="utf-8"),
            screen.processes,
            traffic,
        )
        return dataclasses.replace(run, others=others)
    except (trial_records.RecordsError, OSError) as error:
        raise errors.Failure(f"{screen.what}: {error}; it lies in {folder}") from error


@contextlib.contextmanager
def _watched(traffic: list[trial_records.Traffic]) -> Iterator[None]:
    """Note what our processes send while the body runs."""
    meter = network_usage.NetworkMeter(os.getpid())

    async def look() -> None:
        while (sent := meter.read()) is not None:
            traffic.append(trial_records.Traffic(time.time(), sent.bytes, sent.segments))
            await asyncio.sleep(_TRAFFIC_SECONDS)

    looking = asyncio.get_running_loop().create_task(look())
    try:
        yield
    finally:
        looking.cancel()
