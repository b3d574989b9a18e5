"""The schedule of a pipeline as a picture, planned or measured."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel_trainer.contract import plan, progress

_KEY = (
    "upper half: forward · lower half: backward\n"
    "number: microbatch · white: waiting\n"
    "light grey: messages · dashed: the next step\n"
    "dark grey: sums, update, input"
)
"""In lines that are no wider than the narrowest axis: schedules above each other stay aligned."""

_HALF = 0.42
"""Height of a forward or a backward; a stage has one above the other."""

_LETTER_POINTS = 6.0
"""Room for a digit of small text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """A step of one replica, as stages work on it."""

    spans: Sequence[plan.Span]
    stages: int
    step_seconds: float | None
    """From the begin of a step to that of the next; None: unknown."""
    update_seconds: Sequence[float] = ()
    """How long each stage sums and updates after its last work; empty: unknown."""

    @property
    def end(self) -> float:
        """When the last work of the step ends, or the step."""
        last = max((span.end for span in self.spans), default=0.0)
        return max(last, self.step_seconds or 0.0)

    def update(self, stage: int) -> tuple[float, float]:
        """Return when a stage begins to sum and update, and for how long, as far as is known."""
        if self.update_seconds:
            works = (span.end for span in self.spans if span.stage == stage)
            return max(works, default=0.0), self.update_seconds[stage]
        last = max((span.end for span in self.spans), default=0.0)
        return last, self.end - last

    @classmethod
    def of_plan(cls, answer: plan.Plan) -> "Schedule":
        """Return the schedule that was planned."""
        updates = [stage.update_seconds for stage in answer.stages]
        return cls(answer.spans, len(answer.stages), answer.step_seconds, updates)

    @classmethod
    def of_run(cls, run: plan.Pipeline) -> "Schedule":
        """Return the schedule that was measured."""
        return cls(run.spans, run.placement.mesh.stage, run.step_seconds)


def of_run(run: plan.Pipeline) -> Mapping[str, Schedule]:
    """Return what was measured, and what was planned where there is a plan, by their titles."""
    drawn = {"Measured: a step of one replica": Schedule.of_run(run)}
    if run.planned is not None:
        drawn["Planned: a step of one replica"] = Schedule.of_plan(run.planned)
    return drawn


def draw_all(figure: Any, drawn: Mapping[str, Schedule], width: float) -> str:
    """Draw schedules one below the other over one axis of time; return them in words.

    Args:
        figure: what is painted.
        drawn: the schedules by their titles.
        width: of the picture, in inches.
    """
    heights = _heights(drawn)
    parts = figure.subfigures(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
    end, last = max(schedule.end for schedule in drawn.values()), list(drawn)[-1]
    return " ".join(
        draw(part, schedule, title, width, end=end, has_key=title == last)
        for part, (title, schedule) in zip(parts, drawn.items(), strict=True)
    )


def height_of_all(drawn: Mapping[str, Schedule]) -> float:
    """Return the inches that `draw_all` needs."""
    return sum(_heights(drawn))


def _heights(drawn: Mapping[str, Schedule]) -> Sequence[float]:
    last = list(drawn)[-1]
    return [height(schedule, has_key=title == last) for title, schedule in drawn.items()]


def height(drawn: Schedule, *, has_key: bool = True) -> float:
    """Return the inches that `draw` needs."""
    return (1.65 if has_key else 0.9) + 0.42 * drawn.stages


def draw(
    figure: Any,
    drawn: Schedule,
    title: str,
    width: float,
    *,
    end: float | None = None,
    has_key: bool = True,
) -> str:
    """Draw a row for each stage over the time of a step; return it in words.

    Args:
        figure: what is painted.
        drawn: the schedule.
        title: what it shows.
        width: of the picture, in inches.
        end: of the axis of time, in seconds, so that schedules can be compared.
        has_key: whether the meaning of colors stands below.
    """
    axis = figure.subplots()
    end = end or drawn.end
    points = 72 * (width - 1) / end if end else 0.0
    colors = palette.microbatches(1 + max((span.microbatch for span in drawn.spans), default=0))
    for span in drawn.spans:
        _span(axis, span, colors[span.microbatch], points * (span.end - span.begin))
    for stage in range(drawn.stages):
        begin, seconds = drawn.update(stage)
        _bar(axis, stage, 2 * _HALF, begin, seconds, palette.UPDATE)
    if drawn.step_seconds is not None:
        axis.axvline(drawn.step_seconds * 1e3, color=palette.INK, linestyle="--", linewidth=1)
    axis.set_yticks(range(drawn.stages), [f"stage {stage}" for stage in range(drawn.stages)])
    axis.set_ylim(drawn.stages - 0.5, -0.5)
    axis.set_xlim(0, 1.02e3 * end)
    axis.set_xlabel("milliseconds")
    if has_key:
        axis.annotate(
            _KEY,
            (0, 0),
            xytext=(0, -30),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=svg.SMALL_POINTS,
            linespacing=1.4,
        )
    lasts = "" if drawn.step_seconds is None else f", {progress.format_seconds(drawn.step_seconds)}"
    axis.set_title(f"{title}{lasts}")
    busy = [
        f"stage {stage} computes {progress.format_seconds(_busy(drawn.spans, stage))}"
        for stage in range(drawn.stages)
    ]
    return f"{title}{lasts}: {', '.join(busy)}."


def _span(axis: Any, span: plan.Span, color: str, points: float) -> None:
    if span.work == plan.MESSAGE:
        _bar(axis, span.stage, _HALF / 3, span.begin, span.end - span.begin, palette.MESSAGE)
        return
    middle = span.stage + (_HALF / 2 if span.work == "backward" else -_HALF / 2)
    _bar(axis, middle, _HALF, span.begin, span.end - span.begin, color)
    label = str(span.microbatch)
    if points > _LETTER_POINTS * (len(label) + 0.5):
        axis.text(
            (span.begin + span.end) / 2 * 1e3,
            middle,
            label,
            color=palette.ink(color),
            fontsize=svg.SMALL_POINTS,
            ha="center",
            va="center",
        )


def _bar(axis: Any, row: float, height: float, begin: float, seconds: float, color: str) -> None:
    axis.barh(
        row,
        seconds * 1e3,
        left=begin * 1e3,
        height=height,
        color=color,
        edgecolor=palette.PAPER,
        linewidth=0.4,
    )


def _busy(spans: Sequence[plan.Span], stage: int) -> float:
    works = (span for span in spans if span.stage == stage and span.work != plan.MESSAGE)
    return sum(span.end - span.begin for span in works)
