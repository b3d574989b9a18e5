"""Which of several variants or runs reaches a target first, in one sentence. Pure."""

import dataclasses
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure over the seeds."""

    mean: float
    deviation: float | None
    """Standard deviation; None with one seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Figure":
        """Return the figure of the values of all seeds."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    """A variant, or a run, that reaches the target in every seed."""

    name: str
    seconds: Figure
    """Of training until then."""
    steps: Figure
    """Updates of the weights until then."""


def sentence(target: str, contenders: Sequence[Contender]) -> str:
    """Say who reaches the target first, by what factor in time and in steps.

    A difference in time that is no larger than both standard deviations together lies within the
    spread of the seeds.

    Args:
        target: such as val_loss ≤ 0.1.
        contenders: those that reach it.
    """
    if not contenders:
        return f"none reaches {target} in every run."
    first, *others = sorted(contenders, key=lambda one: one.seconds.mean)
    if not others:
        return f"only {first.name} reaches {target} in every run."
    second = others[0]
    times = f"{first.seconds.mean:.4g} s against {second.seconds.mean:.4g} s"
    steps = f"{_ratio(first.steps.mean, second.steps.mean)} steps"
    spreads = [one.seconds.deviation for one in (first, second)]
    spread = sum(one for one in spreads if one is not None)
    if second.seconds.mean - first.seconds.mean <= spread:
        return (
            f"the difference between {first.name} and {second.name} until {target} ({times}) lies"
            f" within the spread of the seeds. {first.name} takes {steps}."
        )
    factor = "" if first.seconds.mean <= 0 else f"{_factor(second, first)} times as fast as "
    unknown = " One run of each does not show the spread." if None in spreads else ""
    return (
        f"{first.name} reaches {target} first, {factor or 'before '}{second.name} ({times})."
        f" It takes {steps}.{unknown}"
    )


def _factor(slower: Contender, faster: Contender) -> str:
    return f"{slower.seconds.mean / faster.seconds.mean:.3g}"


def _ratio(steps: float, others: float) -> str:
    if steps == others or not others:
        return "as many"
    return f"{steps / others:.3g} times as many"
