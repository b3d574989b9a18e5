"""Recent timings of the stages: durations and moments of their work. Pure."""

import collections
import itertools
import statistics
from collections.abc import Iterator, Sequence

from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.pipeline import schedule

_KEPT_STEPS = 20
"""Number of steps whose timings are kept."""

MOMENTS = 2 * len(schedule.Pass)
"""Moments of each stage and microbatch: start and end of each kind of work, 0 if it had none."""


class StepTiming:
    """Timings of the latest steps."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._busy: collections.deque[Sequence[float]] = collections.deque(maxlen=_KEPT_STEPS)
        """Seconds in which each stage computed, but for the first step: that is mostly tracing."""
        self._spans: collections.deque[list[plan.Span]] = collections.deque(maxlen=_KEPT_STEPS)
        """Of the first replica, by the clocks of its devices; in order."""

    def add(self, numbers: Sequence[float]) -> None:
        """Add a step: busy seconds of each stage, then `MOMENTS` of each stage and microbatch."""
        busy, moments = numbers[: self._stages], numbers[self._stages :]
        if self._spans:
            self._busy.append(busy)
        self._spans.append(sorted(_spans(moments, self._stages), key=lambda span: span.begin))

    @property
    def busy(self) -> list[float] | None:
        """For each stage its mean seconds of computing in a step; None before two steps."""
        return [
            statistics.fmean(busy_seconds) for busy_seconds in zip(*self._busy, strict=True)
        ] or None

    @property
    def step_seconds(self) -> float | None:
        """Median seconds from the start of a step to that of the next. None: before two steps."""
        begins = [spans[0].begin for spans in self._spans if spans]
        between = [late - early for early, late in itertools.pairwise(begins)]
        return statistics.median(between) if between else None

    @property
    def spans(self) -> tuple[plan.Span, ...]:
        """The work of the stages in the step of median length, from its start."""
        steps = [spans for spans in self._spans if spans]
        if not steps:
            return ()
        by_length = sorted(
            steps, key=lambda spans: max(span.end for span in spans) - spans[0].begin
        )
        chosen = by_length[len(steps) // 2]
        begin = chosen[0].begin
        return tuple(
            span.model_copy(update={"begin": span.begin - begin, "end": span.end - begin})
            for span in chosen
        )


def _spans(moments: Sequence[float], stages: int) -> Iterator[plan.Span]:
    microbatches = len(moments) // (stages * MOMENTS)
    iterator = iter(moments)
    for stage, microbatch in itertools.product(range(stages), range(microbatches)):
        for work in schedule.Pass:
            begin, end = next(iterator), next(iterator)
            if begin:
                yield plan.Span(
                    stage=stage, work=work.value, microbatch=microbatch, begin=begin, end=end
                )
