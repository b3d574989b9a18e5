"""The figures of a report, worked out from what a run left. Pure."""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tfparallel import train_log
from tfparallel.report import attribution, history, periods, run_records
from tfparallel.report.chronology import Chronology
from tfparallel.terminal import display
from tfparallel.terminal import placement as terminal_placement
from tfparallel_operator.api import quantities
from tfparallel_operator.core.pods import avoided_nodes
from tfparallel_operator.core.status.goodput import Goodput
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.contract import progress as contract_progress

_POINTS = 300
"""Most points of a curve: a screen shows no more."""

_MEASURED = (outputs.TrainEvent.TRAIN, outputs.TrainEvent.EVALUATION)
"""What records loss and metrics."""

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """A figure over steps or over seconds."""

    name: str
    parts: Sequence[Sequence[Point]]
    """A part for each start of training; none is empty."""

    @property
    def points(self) -> Sequence[Point]:
        """The points of all parts."""
        return [point for part in self.parts for point in part]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.parts[-1][-1][1]


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """Loss or a metric, in training and in evaluations, over steps."""

    name: str
    training: Curve | None
    evaluation: Curve | None

    @property
    def curves(self) -> Sequence[Curve]:
        """Those that exist."""
        return [curve for curve in (self.training, self.evaluation) if curve is not None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """All that a report shows."""

    title: str
    state: str
    message: str
    """Why the job failed, waits or was cut off; empty where all is well."""
    facts: Sequence[tuple[str, str]]
    """What ran, by name."""
    results: Sequence[tuple[str, str]]
    """The last loss and metrics, by name."""
    metrics: Sequence[Metric]
    throughput: Curve | None
    input_wait: Curve | None
    memory: Curve | None
    memory_limit: int | None
    """Bytes that a pod of the coordinator may use."""
    goodput: Goodput | None
    """None: no operator has recorded it."""
    chronology: Chronology
    attempts: Sequence[history.Attempt]
    pods: Sequence[history.Bar]
    attempts_without_pods: Sequence[int]
    """Attempts of the job, no pod of which is on record."""
    staleness: Mapping[int, int]
    """How many updates had which staleness."""
    stragglers: Sequence[str]
    """A sentence on each replica that stayed slower than the others."""


def make(run: run_records.RunRecords) -> Content:
    """Work out all figures."""
    return Content(
        title=run.job.name,
        state="Cut off" if run.is_cut_off else run.job.state,
        message=_message(run),
        facts=tuple(_facts(run)),
        results=tuple(_results(run)),
        metrics=tuple(_metrics(run.records)),
        throughput=_over_time(run, "examples a second", lambda record: record.examples_per_second),
        input_wait=_over_time(run, "input wait", _input_wait_percent),
        memory=_over_time(run, "memory", lambda record: record.fields.get("memoryBytes")),
        memory_limit=_memory_limit(run),
        goodput=run.measure_goodput(),
        chronology=attribution.attribute(run),
        attempts=tuple(history.attempts(run)),
        pods=tuple(history.bars(run)),
        attempts_without_pods=history.without_pods(run),
        staleness=_staleness(run.records),
        stragglers=tuple(_describe_stragglers(run)),
    )


def _message(run: run_records.RunRecords) -> str:
    if run.is_cut_off:
        return (
            "The process of the run ended before the job did. The page shows what is on record up"
            f" to then. To continue it: tfparallel run JOB.yaml --output {run.source}"
        )
    conditions = run.job.status.conditions
    kinds = ("Failed", "Suspended", "Pending", "Restarting")
    by_kind = {
        condition.type: condition.message for condition in conditions if condition.status == "True"
    }
    return next((by_kind[kind] for kind in kinds if by_kind.get(kind)), "")


def _facts(run: run_records.RunRecords) -> Iterator[tuple[str, str]]:
    status, spec = run.job.status, run.job.manifest.get("spec", {})
    yield "job", run.job.name
    yield "ran", run.source
    if status.strategy:
        yield "strategy", status.strategy
    if run.job.layout is not None:
        replicas = (f"{role} {count}" for role, count in run.job.layout.counts.items())
        yield "replicas", ", ".join(replicas)
    if status.placement is not None:
        yield "mesh", terminal_placement.headline(status.placement).removeprefix("mesh ")
    if (batch := (spec.get("trainer") or {}).get("globalBatchSize")) is not None:
        yield "global batch", f"{batch} examples"
    yield "began", f"{run.begin:%Y-%m-%d %H:%M:%S %Z}"
    ended = "ended" if run.job.is_finished else "last seen" if run.is_cut_off else "seen"
    yield ended, f"{run.end:%Y-%m-%d %H:%M:%S %Z}"
    yield "lasted", contract_progress.format_duration((run.end - run.begin).total_seconds())
    if (steps := _steps(run)) is not None:
        yield "steps", steps
    if status.verification is not None:
        yield "verified", status.verification.sentence
    restarts = status.restarts.failure + status.restarts.disruption
    if restarts:
        causes = ", ".join(f"{cause} {count}" for cause, count in status.restart_causes.items())
        yield "restarts", f"{restarts} ({causes})" if causes else str(restarts)
    if status.node_losses:
        yield "node losses", avoided_nodes.describe(status)
    versions = dict(run.versions)
    for record in run.records:
        versions |= record.fields.get("versions", {}) if record.is_first_step else {}
    if versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())


def _steps(run: run_records.RunRecords) -> str | None:
    report = run.job.status.progress
    last = max((record.step for record in run.records), default=None)
    if report is None:
        return None if last is None else f"{last:,}"
    total = "" if report.total_steps is None else f" of {report.total_steps:,}"
    return f"{max(report.step, last or 0):,}{total}"


def _results(run: run_records.RunRecords) -> Iterator[tuple[str, str]]:
    """Yield the last loss and metrics: of the summary, else as the run reported them last."""
    if run.summary is not None:
        values = {name: str(value) for name, value in run.summary.metrics.items()}
    else:
        values = {
            f"val_{name}" if record.event == outputs.TrainEvent.EVALUATION else name: str(value)
            for record in run.records
            if record.event in _MEASURED
            for name, value in record.metrics.items()
        }
    if not values and run.job.status.progress is not None:
        values = dict(run.job.status.progress.metrics)
    for name in sorted(values, key=lambda name: (not name.endswith("loss"), name)):
        yield name, display.short(values[name])


def _metrics(recorded: Sequence[train_log.Record]) -> Iterator[Metric]:
    values: dict[str, dict[str, dict[float, float]]] = {}
    for record in recorded:
        if record.event in _MEASURED:
            for name, value in record.metrics.items():
                if math.isfinite(value):
                    by_kind = values.setdefault(name, {})
                    by_kind.setdefault(record.event, {})[float(record.step)] = value
    for name in sorted(values, key=lambda name: (name != "loss", name)):
        training, evaluation = (_of_steps(kind, values[name].get(kind, {})) for kind in _MEASURED)
        yield Metric(name, training, evaluation)


def _of_steps(kind: str, by_step: Mapping[float, float]) -> Curve | None:
    """Return a curve; of a step that was made again the newest value counts."""
    name = "training" if kind == outputs.TrainEvent.TRAIN else "evaluation"
    return Curve(name, [thin(sorted(by_step.items()))]) if by_step else None


def _over_time(
    run: run_records.RunRecords, name: str, value_of: Callable[[train_log.Record], float | None]
) -> Curve | None:
    parts = []
    for period in periods.find(run):
        points_by_step = [
            (run.seconds_at(record.time), float(value))
            for record in period.records
            if record.event == outputs.TrainEvent.TRAIN and (value := value_of(record)) is not None
        ]
        points = [point for point in points_by_step if math.isfinite(point[1])]
        if points:
            parts.append(thin(points))
    return Curve(name, parts) if parts else None


def thin(points: Sequence[Point], most: int = _POINTS) -> Sequence[Point]:
    """Return at most `most` points: the means of equal groups of neighbors."""
    size = math.ceil(len(points) / most)
    if size <= 1:
        return tuple(points)
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return tuple(
        (statistics.fmean(x for x, _ in group), statistics.fmean(y for _, y in group))
        for group in groups
    )


def duration(seconds: float) -> str:
    """Write a time for people, with tenths of a second below a minute."""
    return f"{seconds:.1f}s" if seconds < 60 else contract_progress.format_duration(seconds)


def _input_wait_percent(record: train_log.Record) -> float | None:
    return None if record.input_wait is None else 100 * record.input_wait


def _memory_limit(run: run_records.RunRecords) -> int | None:
    """Return the limit of the role that coordinates; None where none holds."""
    if run.is_local:
        return None
    layout = run.job.layout
    pod_spec = {} if layout is None else layout.specs[layout.coordinator.role].pod_spec
    for container in pod_spec.get("containers", ()):
        limit = container.get("resources", {}).get("limits", {}).get("memory")
        if container.get("name") == "tensorflow" and limit is not None:
            count = quantities.parse(str(limit))
            return None if count is None else int(count)
    return None


def _staleness(recorded: Iterable[train_log.Record]) -> Mapping[int, int]:
    counts: collections.Counter[int] = collections.Counter()
    for record in recorded:
        for staleness, count in record.fields.get("staleness", {}).items():
            counts[int(staleness)] += int(count)
    return dict(sorted(counts.items()))


def _describe_stragglers(run: run_records.RunRecords) -> Iterator[str]:
    moments: dict[str, list[float]] = {}
    for record in run.records:
        if (straggler := record.fields.get("straggler")) is not None:
            moments.setdefault(str(straggler), []).append(run.seconds_at(record.time))
    for replica, seconds in moments.items():
        yield (
            f"{replica} stayed slower than the other replicas: first reported after"
            f" {duration(seconds[0])}, last after {duration(seconds[-1])}."
        )
