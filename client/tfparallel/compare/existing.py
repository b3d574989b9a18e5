"""Compares existing runs by the records of the trainer."""

import dataclasses
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence

from rich import table as rich_table
from rich import text as rich_text

from tfparallel import train_log
from tfparallel.compare import comparison_text, measure, verdict
from tfparallel.terminal import display
from tfparallel_operator.api import load
from tfparallel_trainer.contract import outputs

_MEASURED = (outputs.TrainEvent.TRAIN, outputs.TrainEvent.EVALUATION)


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """The state of a run at the end of an epoch, at an evaluation, or at its end."""

    step: int
    seconds: float
    """Since the first record."""
    values: Mapping[str, float]
    """Loss and metrics; those of the evaluation begin with val_."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedRun:
    """The records of a run."""

    name: str
    marks: Sequence[Mark]
    speed: float | None
    """Examples a second, the median of all reports."""

    @property
    def values(self) -> list[Mapping[str, float]]:
        """Loss and metrics of all marks."""
        return [mark.values for mark in self.marks]

    def first(self, target: measure.Target) -> Mark | None:
        """Return the first mark that is as good as the target."""
        met = (mark for mark in self.marks if target.met_by(mark.values))
        return next(met, None)

    def last(self, metric: str) -> float | None:
        """Return the last value of a metric."""
        values = [mark.values[metric] for mark in self.marks if metric in mark.values]
        return values[-1] if values else None


def compare(places: Mapping[str, pathlib.Path], target: measure.Target | None) -> None:
    """Show a table of runs, and which reaches the target first.

    Args:
        places: where the results of each run lie, by its name.
        target: None: the loss that all reach.

    Raises:
        SpecError: a run recorded nothing, or the target names no metric of theirs.
    """
    runs = [read(name, folder) for name, folder in places.items()]
    metrics = set.union(*(set(values) for run in runs for values in run.values))
    if target is not None and target.metric not in metrics:
        raise load.SpecError(
            f"--target {target.metric}: the runs have {', '.join(sorted(metrics))}; give one of"
            " them"
        )
    target = target or measure.common_target([run.values for run in runs])
    out, _ = display.consoles()
    out.print(table(runs, target))
    if target is not None:
        display.print_line(out, conclusion(runs, target))


def read(name: str, folder: pathlib.Path) -> RecordedRun:
    """Read the records of a run.

    Raises:
        SpecError: it recorded no step, or not as the trainer does.
    """
    file = folder / outputs.TRAIN_LOG
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise load.SpecError(f"{file}: not the log of a run; give the folder of a run") from error
    measured = [entry for entry in train_log.parse(content, str(file)) if entry.event in _MEASURED]
    speeds = [speed for record in measured if (speed := record.examples_per_second)]
    marks = list(_marks(measured))
    if not marks:
        raise load.SpecError(f"{name}: the run has recorded no step; give one that has trained")
    return RecordedRun(name, marks, statistics.median(speeds) if speeds else None)


def _marks(measured: Sequence[train_log.Record]) -> Iterator[Mark]:
    """Yield evaluations, ends of epochs and the end: a loss within an epoch is of few steps."""
    ended = 0
    for record in measured:
        is_evaluation = record.event == outputs.TrainEvent.EVALUATION
        epoch = int(record.fields.get("epoch", ended))
        if not is_evaluation and epoch <= ended and record is not measured[-1]:
            continue
        ended = max(ended, epoch)
        prefix = measure.EVALUATED if is_evaluation else ""
        values = {f"{prefix}{name}": value for name, value in record.metrics.items()}
        yield Mark(record.step, (record.time - measured[0].time).total_seconds(), values)


def table(runs: Sequence[RecordedRun], target: measure.Target | None) -> rich_table.Table:
    """Return a row for each run."""
    shown = rich_table.Table("Run", "Steps", "Seconds", "Examples/s")
    if target is not None:
        shown.add_column(f"Until {target.name}, s")
        shown.add_column(f"Last {target.metric}")
    for run in runs:
        last = run.marks[-1]
        row = [str(last.step), comparison_text.number(last.seconds), _number(run.speed)]
        if target is not None:
            mark = run.first(target)
            row += [
                _number(None if mark is None else mark.seconds),
                _number(run.last(target.metric)),
            ]
        shown.add_row(rich_text.Text(run.name, overflow="fold"), *row)
    return shown


def _number(value: float | None) -> str:
    return comparison_text.NOTHING if value is None else comparison_text.number(value)


def conclusion(runs: Sequence[RecordedRun], target: measure.Target) -> str:
    """Say which run reaches the target first."""
    reached = [(run, mark) for run in runs if (mark := run.first(target)) is not None]
    contenders = [
        verdict.Contender(
            run.name,
            *(
                verdict.SeedStatistics(figure, None)
                for figure in (mark.seconds, mark.step, run.marks[-1].seconds)
            ),
        )
        for run, mark in reached
    ]
    return verdict.sentence(target.name, contenders)
