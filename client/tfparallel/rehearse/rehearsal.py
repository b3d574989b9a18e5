"""The rehearsal from a job to a report."""

import dataclasses
import pathlib
from collections.abc import Sequence

from tfparallel import errors
from tfparallel.backends.local import cluster, folders
from tfparallel.compare import progress
from tfparallel.job_source.source import JobSource
from tfparallel.rehearse import fault_injection, faults, job_runs, recovery, young_daly
from tfparallel_operator.api import load
from tfparallel_trainer.contract import weight_comparison

_HOUR = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """The goodput of the job on a cluster whose nodes fail at random."""

    hours_between_failures: float
    """Of the whole job, on average."""
    costs: young_daly.Costs
    interval_steps: int
    """Steps between two checkpoints, as the job has them."""
    goodput: float
    best_interval_steps: int
    best_goodput: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A run without and a run with faults, and what follows from them."""

    job: str
    folder: pathlib.Path
    scenario: faults.Scenario
    undisturbed: recovery.TrialRecords
    disturbed: recovery.TrialRecords
    weights: weight_comparison.WeightComparison | None
    """None: a run kept no checkpoint."""
    hours_between_failures: float | None
    """Of the whole job, for a prediction; None: no prediction is wanted."""

    @property
    def recoveries(self) -> Sequence[recovery.Recovery]:
        """How the disturbed run came back from each fault that happened."""
        return recovery.find_recoveries(self.disturbed)

    @property
    def missed_faults(self) -> Sequence[faults.Fault]:
        """The faults that did not happen, because the run ended before their steps."""
        return self.scenario.faults[len(self.disturbed.injections) :]

    @property
    def prediction(self) -> Prediction | None:
        """The prediction; None: nobody asked for it, or the runs lack a cost."""
        if self.hours_between_failures is None:
            return None
        return predict(self.undisturbed, self.disturbed, self.hours_between_failures)


def rehearse(
    source: JobSource,
    scenario: faults.Scenario,
    folder: pathlib.Path,
    hours_between_failures: float | None,
) -> Rehearsal:
    """Run a job without and with faults, each in its own folder.

    Args:
        folder: for both runs; it must be new.
        hours_between_failures: of the whole job, for a prediction; None: there is none.

    Raises:
        SpecError: the job cannot be rehearsed, or the folder is not new.
        Failure: the undisturbed run failed.
        Stopped: a signal ended a run.
    """
    _check(source, scenario)
    with folders.output(folder):
        is_used = any(folder.iterdir())
    if is_used:
        raise load.SpecError(f"--output {folder}: holds files already; give a new folder")
    with progress.Screen(2) as screen:
        screen.begin(1, "undisturbed")
        undisturbed = job_runs.run(source, folder / "undisturbed", screen, faults.Scenario())
        if undisturbed.problem:
            raise errors.Failure(
                f"the undisturbed run: {undisturbed.problem}; its logs are in {undisturbed.logs}"
            )
        if undisturbed.steps:
            faults.check_steps(scenario, undisturbed.steps[-1].number)
        screen.begin(2, "with faults")
        disturbed = job_runs.run(source, folder / "disturbed", screen, scenario)
    return Rehearsal(
        job=source.job.metadata.name,
        folder=folder,
        scenario=scenario,
        undisturbed=undisturbed,
        disturbed=disturbed,
        weights=None
        if disturbed.problem
        else job_runs.compare_weights(undisturbed.results, disturbed.results),
        hours_between_failures=hours_between_failures,
    )


def _check(source: JobSource, scenario: faults.Scenario) -> None:
    trainer = source.job.spec.trainer
    if trainer is None:
        raise load.SpecError(
            "spec.trainer: missing; tfparallel rehearse reads the steps of the trainer: write it"
        )
    if trainer.checkpoint is not None and trainer.checkpoint.uri is not None:
        raise load.SpecError(
            "spec.trainer.checkpoint.uri: both runs would share the bucket; give"
            " --set spec.trainer.checkpoint.uri=null --set spec.trainer.checkpoint.claim=rehearsal"
        )
    for fault in scenario.faults:
        if not fault_injection.can_inject(fault.kind):
            raise load.SpecError(f"--{fault}: needs Linux; leave it out on this system")
    replicas = {replica.name for replica in cluster.lay_out(source.job).all_replicas}
    faults.check_replicas(scenario, replicas)
    if trainer.steps is not None:
        faults.check_steps(scenario, trainer.steps)


def predict(
    undisturbed: recovery.TrialRecords, disturbed: recovery.TrialRecords, hours: float
) -> Prediction | None:
    """Predict the goodput from what runs have cost; None: they have no checkpoint or restart.

    Args:
        hours: between two failures of the job, on average.
    """
    costs = recovery.measure_costs(undisturbed, recovery.find_recoveries(disturbed))
    interval, step = recovery.measure_interval(undisturbed), undisturbed.step_seconds
    if costs is None or interval is None or not step:
        return None
    between_failures = hours * _HOUR
    best = max(1, round(young_daly.find_best_interval(costs, between_failures) / step))
    return Prediction(
        hours_between_failures=hours,
        costs=costs,
        interval_steps=interval,
        goodput=young_daly.estimate_goodput(interval * step, costs, between_failures),
        best_interval_steps=best,
        best_goodput=young_daly.estimate_goodput(best * step, costs, between_failures),
    )
