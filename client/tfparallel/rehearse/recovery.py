"""What each fault cost, from the records of a run."""

import dataclasses
import datetime
import itertools
import pathlib
import statistics
from collections.abc import Iterator, Sequence

from tfparallel import train_log
from tfparallel.backends.local import record
from tfparallel.rehearse import faults, young_daly
from tfparallel_trainer.contract import outputs


@dataclasses.dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a step of the job."""

    time: datetime.datetime
    number: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecords:
    """What a run left."""

    results: pathlib.Path
    logs: pathlib.Path
    problem: str
    """Why the job did not succeed; empty: it did."""
    steps: Sequence[StepEnd]
    log_records: Sequence[train_log.Record]
    events: Sequence[record.Event]
    pod_changes: Sequence[record.PodChange]
    injections: Sequence[faults.Injection]

    @property
    def seconds(self) -> float | None:
        """From the first step to the last; None: fewer than two steps ended."""
        if len(self.steps) < 2:
            return None
        return (self.steps[-1].time - self.steps[0].time).total_seconds()

    @property
    def step_seconds(self) -> float | None:
        """The median of a step that follows the one before it; None: none does."""
        durations = [
            (after.time - before.time).total_seconds()
            for before, after in itertools.pairwise(self.steps)
            if after.number == before.number + 1
        ]
        return statistics.median(durations) if durations else None


@dataclasses.dataclass(frozen=True, slots=True)
class Recovery:
    """How a job came back from a fault. The seconds count from the fault; None: it did not."""

    fault: faults.Fault
    step: int
    """The last step before the fault."""
    noticed: float | None
    """The operator's core saw an end of a process, or wrote an event."""
    restarted: float | None
    """The process of the replica started again, or of any if all or a cut had the fault."""
    resumed: float | None
    """The first step after that was made."""
    advanced: float | None
    """The first step that the job had not made before the fault."""
    lost_steps: int | None
    """Steps that were made again."""


@dataclasses.dataclass(frozen=True, slots=True)
class TimelineEntry:
    """Something that happened."""

    seconds: float
    """Since the first step of the run."""
    text: str


def find_recoveries(run: TrialRecords) -> Sequence[Recovery]:
    """Return how a run came back from each fault that happened."""
    return [_find_recovery(run, injection) for injection in run.injections]


def _find_recovery(run: TrialRecords, injection: faults.Injection) -> Recovery:
    begin = injection.time
    ends = [change.time for change in run.pod_changes if change.phase.ended]
    moments = (*ends, *(event.time for event in run.events))
    noticed = min((moment for moment in moments if moment >= begin), default=None)
    starts = (
        change.time
        for change in run.pod_changes
        if injection.fault.ends_with(change.replica) and not change.phase.ended
    )
    restarted = next((moment for moment in starts if noticed and moment >= noticed), None)
    resumed = next((step for step in run.steps if restarted and step.time >= restarted), None)
    before = max(
        (step.number for step in run.steps if resumed and step.time < resumed.time),
        default=injection.step,
    )
    advanced = next(
        (
            step
            for step in run.steps
            if resumed and step.time >= resumed.time and step.number > before
        ),
        None,
    )

    def count(moment: datetime.datetime | None) -> float | None:
        return None if moment is None else (moment - begin).total_seconds()

    return Recovery(
        fault=injection.fault,
        step=injection.step,
        noticed=count(noticed),
        restarted=count(restarted),
        resumed=count(resumed.time if resumed else None),
        advanced=count(advanced.time if advanced else None),
        lost_steps=None if resumed is None else max(0, before + 1 - resumed.number),
    )


def build_timeline(run: TrialRecords) -> Sequence[TimelineEntry]:
    """Return what happened in a run, oldest first."""
    if not run.steps:
        return ()
    begin = run.steps[0].time
    return [
        TimelineEntry((moment - begin).total_seconds(), text)
        for moment, text in sorted(_list_moments(run))
    ]


def _list_moments(run: TrialRecords) -> Iterator[tuple[datetime.datetime, str]]:
    for injection in run.injections:
        yield injection.time, f"{injection.fault}, after step {injection.step}"
    for event in run.events:
        yield event.time, f"{event.reason}: {event.message}"
    for change in run.pod_changes:
        end = f"ends with exit code {change.exit_code}"
        yield change.time, f"{change.replica} {end if change.phase.ended else 'starts'}"
    for entry in run.log_records:
        if entry.is_first_step:
            yield entry.time, f"first step of a process: step {entry.step}"


def measure_costs(
    undisturbed: TrialRecords, recoveries: Sequence[Recovery]
) -> young_daly.Costs | None:
    """Return what checkpoints and restarts cost; None: the runs had none of one of them."""
    saved = _find_checkpoints(undisturbed)
    restarts = [recovery.resumed for recovery in recoveries if recovery.resumed is not None]
    if not saved or not restarts:
        return None

    def take_median(field: str) -> float:
        return statistics.median(float(entry.fields.get(field, 0.0)) for entry in saved)

    return young_daly.Costs(
        pause=take_median("seconds"),
        write=take_median("writeSeconds"),
        restart=statistics.fmean(restarts),
    )


def measure_interval(undisturbed: TrialRecords) -> int | None:
    """Return the steps between two checkpoints: the median; None: none was saved."""
    steps = [0, *(entry.step for entry in _find_checkpoints(undisturbed))]
    intervals = [after - before for before, after in itertools.pairwise(steps) if after > before]
    return round(statistics.median(intervals)) if intervals else None


def _find_checkpoints(run: TrialRecords) -> Sequence[train_log.Record]:
    return [entry for entry in run.log_records if entry.event == outputs.TrainEvent.CHECKPOINT]
