"""Which of several variants or runs reaches a target first, in one sentence. Pure."""

import dataclasses
import statistics
from collections.abc import Sequence

from tfparallel.compare import machine_load


@dataclasses.dataclass(frozen=True, slots=True)
class SeedStatistics:
    """A figure over the seeds."""

    mean: float
    deviation: float | None
    """Standard deviation; None with one seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedStatistics":
        """Return the figure of the values of all seeds."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    """A variant, or a run, that reaches the target in every seed."""

    name: str
    seconds: SeedStatistics
    """Of training until then."""
    steps: SeedStatistics
    """Updates of the weights until then."""
    whole: SeedStatistics
    """Seconds of the run with start and end."""


def sentence(target: str, contenders: Sequence[Contender], busy: float | None = None) -> str:
    """Say who reaches the target first, by what factor in time and in steps.

    A difference in time that is no larger than both standard deviations together lies within the
    spread of the seeds. Of one run each, or of runs on a busy machine, no factor is told: it may
    be that of other work.

    Args:
        target: such as val_loss ≤ 0.1.
        contenders: those that reach it.
        busy: the largest share of the CPU time that other programs used in a run.
    """
    if not contenders:
        return f"none reaches {target} in every run."
    first, *others = sorted(contenders, key=lambda contender: contender.seconds.mean)
    if not others:
        return f"only {first.name} reaches {target} in every run."
    second = others[0]
    times = f"{first.seconds.mean:.4g} s against {second.seconds.mean:.4g} s"
    whole = f"whole runs {first.whole.mean:.4g} s against {second.whole.mean:.4g} s"
    steps = f"{_ratio(first.steps.mean, second.steps.mean)} steps"
    if busy is not None and busy > machine_load.BUSY:
        return (
            f"no conclusion on time: other programs used up to {busy:.0%} of this machine's CPU"
            f" time ({times}; {whole}). Until {target}, {first.name} takes {steps} as"
            f" {second.name}."
        )
    spreads = [contender.seconds.deviation for contender in (first, second)]
    spread = sum(deviation for deviation in spreads if deviation is not None)
    if second.seconds.mean - first.seconds.mean <= spread:
        return (
            f"the difference between {first.name} and {second.name} until {target} ({times}) lies"
            f" within the spread of the seeds. {first.name} takes {steps}."
        )
    if None in spreads:
        return (
            f"{first.name} reaches {target} before {second.name} ({times}; {whole}). It takes"
            f" {steps}. One run of each does not show whether another one would do the same."
        )
    factor = "" if first.seconds.mean <= 0 else f"{_factor(second, first)} times as fast as "
    return (
        f"{first.name} reaches {target} first, {factor or 'before '}{second.name} ({times};"
        f" {whole}). It takes {steps}."
    )


def _factor(slower: Contender, faster: Contender) -> str:
    return f"{slower.seconds.mean / faster.seconds.mean:.3g}"


def _ratio(steps: float, others: float) -> str:
    if steps == others or not others:
        return "as many"
    return f"{steps / others:.3g} times as many"
