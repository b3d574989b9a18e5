"""Figures of one run, as pure functions of its records."""

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfparallel.compare import trial_records

EVALUATED = "val_"
"""Begins the names of an evaluation's metrics."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A loss or metric to reach."""

    metric: str
    value: float

    @property
    def falls(self) -> bool:
        """Whether less is better."""
        return self.metric.endswith("loss") or "error" in self.metric

    @property
    def name(self) -> str:
        """What it is called in tables and sentences."""
        return f"{self.metric} {'≤' if self.falls else '≥'} {self.value:.4g}"

    def met_by(self, values: Mapping[str, float]) -> bool:
        """Whether the metric is among the values, and as good."""
        value = values.get(self.metric)
        if value is None:
            return False
        return value <= self.value if self.falls else value >= self.value


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """Where a run stood at the end of an epoch."""

    steps: int
    """Updates of the weights so far."""
    examples: int
    """Used so far."""
    seconds: float
    """Since the end of the first step."""
    values: Mapping[str, float]
    """Loss and metrics then."""


def points(run: trial_records.TrialRun) -> Iterator[Point]:
    """Give the ends of a run's epochs in their order."""
    steps = examples = 0
    for epoch in run.epochs:
        steps += len(epoch.steps)
        examples += epoch.examples
        values, at = {"loss": epoch.loss}, epoch.steps[-1].at
        if epoch.evaluation is not None:
            at = epoch.evaluation.at
            metrics = epoch.evaluation.metrics
            values |= {f"{EVALUATED}{name}": value for name, value in metrics.items()}
        yield Point(steps, examples, at - run.trained_from, values)


def after_warmup(run: trial_records.TrialRun) -> tuple[int, int, float]:
    """Return steps, examples and seconds after warm-up.

    These are all epochs but the first, each from its start to its last step: neither evaluations
    nor the time between epochs count. Of a run with one epoch, the second half of its steps counts.
    """
    later = run.epochs[1:]
    if later:
        return (
            sum(len(epoch.steps) for epoch in later),
            sum(epoch.examples for epoch in later),
            sum(epoch.seconds for epoch in later),
        )
    steps = run.steps
    half = (len(steps) - 1) // 2
    rest = steps[half + 1 :]
    seconds = steps[-1].at - steps[half].at
    return len(rest), sum(step.examples for step in rest), seconds


def speed(run: trial_records.TrialRun) -> float | None:
    """Return examples per second after warm-up; None if the run is too short."""
    _, examples, seconds = after_warmup(run)
    return examples / seconds if seconds > 0 else None


def step_seconds(run: trial_records.TrialRun) -> float | None:
    """Return the seconds between two updates after warm-up."""
    steps, _, seconds = after_warmup(run)
    return seconds / steps if steps else None


def epoch_seconds(run: trial_records.TrialRun) -> float | None:
    """Return the seconds of an epoch after warm-up; None for a run with one epoch."""
    later = run.epochs[1:]
    return statistics.fmean(epoch.seconds for epoch in later) if later else None


def first(run: trial_records.TrialRun, target: Target) -> Point | None:
    """The first end of an epoch where the target was reached."""
    return next((point for point in points(run) if target.met_by(point.values)), None)


def reached_by_all(runs: Sequence[trial_records.TrialRun]) -> Target | None:
    """The loss that every run reaches."""
    return common_target([[point.values for point in points(run)] for run in runs])


def common_target(runs: Sequence[Sequence[Mapping[str, float]]]) -> Target | None:
    """Return the loss that every run reaches: the worst of their best ones.

    That of the evaluation where all have one; None when a loss is not a finite number.

    Args:
        runs: for each, its losses and metrics in their order.
    """
    for metric in (f"{EVALUATED}loss", "loss"):
        losses = [[values[metric] for values in run if metric in values] for run in runs]
        if all(losses):
            worst = max(map(min, losses))
            return Target(metric, worst) if math.isfinite(worst) else None
    return None


def last_variance(run: trial_records.TrialRun) -> float:
    """Variance of the steps' losses within the last epoch."""
    return statistics.pvariance([step.loss for step in run.epochs[-1].steps])


def staleness(run: trial_records.TrialRun) -> Mapping[int, int]:
    """How many updates had which staleness; empty where workers step together."""
    counts = collections.Counter(step.staleness for step in run.steps if step.staleness is not None)
    return dict(sorted(counts.items()))


def mean_staleness(run: trial_records.TrialRun) -> float | None:
    """The mean over all updates."""
    counts = staleness(run)
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else None


def per_update(
    run: trial_records.TrialRun, of: Callable[[trial_records.Traffic], int]
) -> float | None:
    """Return what the processes send for an update after warm-up, evaluations included.

    None when fewer than two moments of that time are known.
    """
    steps = run.steps
    warm_from = run.epochs[1].began if len(run.epochs) > 1 else steps[(len(steps) - 1) // 2].at
    moments = [moment for moment in run.traffic if warm_from <= moment.at <= steps[-1].at]
    if len(moments) < 2:
        return None
    between = [step for step in steps if moments[0].at < step.at <= moments[-1].at]
    return (of(moments[-1]) - of(moments[0])) / len(between) if between else None
