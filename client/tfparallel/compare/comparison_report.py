"""The comparison as values: rows of figures, curves, and the spread of staleness. Pure."""

import collections
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfparallel.compare import complexity, measure, trial_jobs, trial_records, verdict

USER_LINES = "your lines of Python"
JOB_FIELDS = "fields of the job that only this mode has"
TRAINER_LINES = "lines of the trainer that only this mode needs"

Runs = Mapping[trial_jobs.Variant, Sequence[trial_records.TrialRun]]
"""The runs of each variant, one for each seed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one variant: a value for each seed that has one."""

    values: Sequence[float]
    asked: int
    """How many seeds there are."""

    @property
    def mean(self) -> float | None:
        """Over the seeds; None without values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; None with fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclasses.dataclass(frozen=True, slots=True)
class FigureRow:
    """A figure of all variants."""

    name: str
    unit: str
    cells: Sequence[Cell]


@dataclasses.dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that belong together."""

    name: str
    rows: Sequence[FigureRow]


@dataclasses.dataclass(frozen=True, slots=True)
class LossCurve:
    """A loss over training: a value of each seed at the end of each epoch."""

    examples: Sequence[int]
    seconds: Sequence[float]
    """Since the first step, the mean over the seeds."""
    losses: Sequence[Sequence[float]]
    """For each epoch those of the seeds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pictured:
    """What the pictures of a comparison show."""

    variants: Sequence[str]
    loss: str
    """Whose curves these are."""
    curves: Sequence[LossCurve]
    speeds: Sequence[verdict.SeedStatistics]
    """Examples a second; 0 where a run was too short to measure them."""
    staleness: Mapping[str, Mapping[int, int]]
    """How many updates had which staleness, for each variant that has any."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonReport(Pictured):
    """All that a comparison shows."""

    job: str
    setting: str
    """One sentence: how many of what."""
    groups: Sequence[RowGroup]
    verdicts: Sequence[str]
    """Which mode reaches the target first: with equal workers, and with a slow one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A job's runs in both modes, the input of a report."""

    job: str
    batch: int
    design: trial_jobs.Design
    runs: Runs
    target: measure.Target | None
    """None: the loss that all reach."""
    user_lines: int
    """Lines of the user's module."""
    job_fields: Mapping[trial_jobs.Mode, int]
    """Fields of the job's spec that the other mode's has not."""


def make(comparison: Comparison) -> ComparisonReport:
    """Work out all figures."""
    groups = (
        RowGroup("performance", tuple(_performance(comparison))),
        RowGroup("stability", tuple(_stability(comparison))),
        RowGroup("complexity", tuple(_complexity(comparison))),
    )
    everything = [run for runs in comparison.runs.values() for run in runs]
    whole = measure.reached_by_all(everything)
    loss = "loss" if whole is None else whole.metric
    return ComparisonReport(
        job=comparison.job,
        setting=_setting(comparison),
        variants=[variant.name for variant in comparison.runs],
        groups=groups,
        loss=loss,
        curves=[_curve(runs, loss) for runs in comparison.runs.values()],
        speeds=[_speed(runs) for runs in comparison.runs.values()],
        staleness={
            variant.name: counts
            for variant, runs in comparison.runs.items()
            if (counts := _added(measure.staleness(run) for run in runs))
        },
        verdicts=list(_verdicts(comparison)),
    )


def _target(comparison: Comparison) -> measure.Target | None:
    everything = [run for runs in comparison.runs.values() for run in runs]
    return comparison.target or measure.reached_by_all(everything)


def _verdicts(comparison: Comparison) -> Iterator[str]:
    target = _target(comparison)
    if target is None:
        return
    for factor in dict.fromkeys(variant.slow_worker for variant in comparison.runs):
        contenders = []
        for variant, runs in comparison.runs.items():
            reached = [point for run in runs if (point := measure.first(run, target)) is not None]
            if variant.slow_worker == factor and len(reached) == len(runs):
                seconds = verdict.SeedStatistics.of([point.seconds for point in reached])
                steps = verdict.SeedStatistics.of([point.steps for point in reached])
                whole = verdict.SeedStatistics.of([run.seconds for run in runs])
                contenders.append(verdict.Contender(str(variant.mode), seconds, steps, whole))
        where = "equal workers" if factor is None else f"a worker {factor:g} times slower"
        others = (
            run.others
            for variant, runs in comparison.runs.items()
            if variant.slow_worker == factor
            for run in runs
        )
        most = max((share for share in others if share is not None), default=None)
        yield f"With {where}, {verdict.sentence(target.name, contenders, most)}"


def _setting(comparison: Comparison) -> str:
    design = comparison.design
    slow = ""
    if design.slow_worker is not None:
        slow = f". Each run is repeated with the last worker {design.slow_worker:g} times slower"
    share = {
        trial_jobs.Equal.UPDATE: f"An update has {comparison.batch} examples in both modes",
        trial_jobs.Equal.WORKER: (
            f"A worker's step has {comparison.batch // design.workers} examples in both modes"
        ),
    }[design.equal]
    return (
        f"{_count(design.workers, 'worker')}, {_count(design.servers, 'server')} for async, "
        f"{_count(design.seeds, 'seed')}. {share}{slow}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _performance(comparison: Comparison) -> Iterator[FigureRow]:
    yield _row(comparison, "speed", "examples/s", measure.speed)
    if comparison.design.slow_worker is not None:
        yield _kept(comparison)
    yield _row(comparison, "an update", "ms", lambda run: _scaled(measure.step_seconds(run), 1000))
    yield _row(comparison, "an epoch", "s", measure.epoch_seconds)
    yield _row(comparison, "whole run with start and end", "s", lambda run: run.seconds)
    yield _row(comparison, "CPU time of other programs", "%", lambda run: _scaled(run.others, 100))
    target = _target(comparison)
    if target is not None:
        name = f"until {target.name}"
        yield _row(comparison, name, "s", _of_first(target, lambda point: point.seconds))
        yield _row(comparison, name, "examples", _of_first(target, lambda point: point.examples))


def _kept(comparison: Comparison) -> FigureRow:
    """The share of its speed that a mode keeps when a worker is slow."""
    cells = []
    for variant, runs in comparison.runs.items():
        even = comparison.runs[dataclasses.replace(variant, slow_worker=None)]
        pairs = [
            (measure.speed(run), measure.speed(other))
            for run, other in zip(runs, even, strict=True)
        ]
        shares = [speed / other for speed, other in pairs if speed is not None and other]
        cells.append(Cell(shares if variant.slow else [], len(runs)))
    return FigureRow("speed kept with a slow worker", "share", cells)


def _stability(comparison: Comparison) -> Iterator[FigureRow]:
    yield _row(comparison, "training loss of the last epoch", "", lambda run: run.epochs[-1].loss)
    yield _row(comparison, "its variance over steps", "", measure.last_variance)
    everything = [run for runs in comparison.runs.values() for run in runs]
    for name in sorted(set.intersection(*(set(run.metrics) for run in everything))):
        if name.startswith(measure.EVALUATED):
            yield _row(comparison, f"final {name}", "", _metric(name))
    yield _row(comparison, "staleness, mean", "updates", measure.mean_staleness)
    yield _row(
        comparison,
        "staleness, largest",
        "updates",
        lambda run: max(measure.staleness(run), default=None),
    )


def _complexity(comparison: Comparison) -> Iterator[FigureRow]:
    design = comparison.design
    yield _row(comparison, "processes", "", lambda run: run.processes)
    yield _row(comparison, "updates", "", lambda run: len(run.steps))
    yield _by_mode(
        comparison,
        "messages of an update, at least",
        lambda mode, run: complexity.messages(mode, run.model, design.workers, design.servers),
    )
    yield _row(
        comparison,
        "TCP segments of an update, measured",
        "",
        lambda run: measure.per_update(run, lambda sent: sent.segments),
    )
    yield _by_mode(
        comparison,
        "weights and gradients of an update",
        lambda mode, run: complexity.weight_bytes(mode, run.model, design.workers) / 1000,
        "kB",
    )
    yield _row(
        comparison,
        "bytes of an update, measured",
        "kB",
        lambda run: _scaled(measure.per_update(run, lambda sent: sent.bytes), 0.001),
    )
    yield _by_mode(comparison, USER_LINES, lambda mode, run: comparison.user_lines)
    yield _by_mode(comparison, JOB_FIELDS, lambda mode, run: comparison.job_fields[mode])
    yield _by_mode(
        comparison,
        TRAINER_LINES,
        lambda mode, run: complexity.trainer_lines(mode),
    )


def _row(
    comparison: Comparison,
    name: str,
    unit: str,
    of: Callable[[trial_records.TrialRun], float | None],
) -> FigureRow:
    return FigureRow(name, unit, [_cell(runs, of) for runs in comparison.runs.values()])


def _by_mode(
    comparison: Comparison,
    name: str,
    of: Callable[[trial_jobs.Mode, trial_records.TrialRun], float],
    unit: str = "",
) -> FigureRow:
    """A figure that is the same for each seed."""
    return FigureRow(
        name,
        unit,
        [Cell([of(variant.mode, runs[0])], 1) for variant, runs in comparison.runs.items()],
    )


def _cell(
    runs: Sequence[trial_records.TrialRun], of: Callable[[trial_records.TrialRun], float | None]
) -> Cell:
    values = [of(run) for run in runs]
    return Cell([value for value in values if value is not None], len(values))


def _speed(runs: Sequence[trial_records.TrialRun]) -> verdict.SeedStatistics:
    speeds = _cell(runs, measure.speed).values
    return verdict.SeedStatistics.of(speeds) if speeds else verdict.SeedStatistics(0.0, None)


def _of_first(
    target: measure.Target, of: Callable[[measure.Point], float]
) -> Callable[[trial_records.TrialRun], float | None]:
    def value_of(run: trial_records.TrialRun) -> float | None:
        point = measure.first(run, target)
        return None if point is None else of(point)

    return value_of


def _metric(name: str) -> Callable[[trial_records.TrialRun], float]:
    return lambda run: run.metrics[name]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _added(counted: Iterator[Mapping[int, int]]) -> Mapping[int, int]:
    total: collections.Counter[int] = collections.Counter()
    for fields in counted:
        total.update(fields)
    return dict(sorted(total.items()))


def _curve(runs: Sequence[trial_records.TrialRun], loss: str) -> LossCurve:
    ends = [[point for point in measure.points(run) if loss in point.values] for run in runs]
    columns = list(zip(*ends, strict=False))
    return LossCurve(
        examples=[column[0].examples for column in columns],
        seconds=[statistics.fmean(point.seconds for point in column) for column in columns],
        losses=[[point.values[loss] for point in column] for column in columns],
    )
