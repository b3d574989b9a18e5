"""A plan as a picture, and a run next to its plan.

Each part paints a figure of its own, or its share of one.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.planning import show
from tfparallel_trainer.contract import plan

_PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "slots": "optimizer state",
    "activations": "activations",
    "working": "working memory",
}
"""Names for people of the parts of `plan.Bytes`."""

_SCHEDULE_KEY = (
    "upper half: forward · lower half: backward\n"
    "number: microbatch · white: waiting · light grey: messages\n"
    "dark grey: sums, update, input · dashed: the next step"
)

_SHOWN_RANKS = 64

_LINE = 0.15
"""Inches of a line of small text."""

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


def picture(answer: plan.Plan, file: pathlib.Path) -> None:
    """Draw placement, memory and schedule into a file."""
    planned = Schedule.of_plan(answer)
    heights = (
        placement_height(answer, svg.WIDE),
        memory_height(answer),
        schedule_height(planned),
    )
    with svg.canvas("Plan", width=svg.WIDE, height=sum(heights) + 0.3) as canvas:
        canvas.figure.suptitle(show.headline(answer), fontsize=svg.TEXT_POINTS)
        parts = canvas.figure.subfigures(3, 1, height_ratios=heights)
        canvas.description = " ".join(
            (
                placement(parts[0], answer, canvas.width),
                memory(parts[1], answer),
                schedule(parts[2], planned, "Schedule", canvas.width),
            )
        )
    file.write_text(canvas.picture.document, encoding="utf-8")


def picture_of_run(run: plan.Pipeline, file: pathlib.Path) -> None:
    """Draw how the stages of a run worked next to what was planned of them into a file."""
    drawn = schedules_of_run(run)
    heights = (schedules_height(drawn), shares_height(run))
    with svg.canvas("Pipeline of a run", width=svg.WIDE, height=sum(heights) + 0.3) as canvas:
        canvas.figure.suptitle(f"stages {show.waiting(run)}", fontsize=svg.TEXT_POINTS)
        upper, lower = canvas.figure.subfigures(2, 1, height_ratios=heights)
        canvas.description = f"{schedules(upper, drawn, canvas.width)} {shares(lower, run)}"
    file.write_text(canvas.picture.document, encoding="utf-8")


def schedules_of_run(run: plan.Pipeline) -> Mapping[str, Schedule]:
    """Return what was measured, and what was planned where there is a plan, by their titles."""
    drawn = {"Measured: a step of one replica": Schedule.of_run(run)}
    if run.planned is not None:
        drawn["Planned: a step of one replica"] = Schedule.of_plan(run.planned)
    return drawn


def placement_height(answer: plan.Plan, width: float) -> float:
    """Return the inches that `placement` needs."""
    rows = sum(_rows(answer, width).values())
    return 0.6 + rows * _box_height(answer) + _LINE * 1.4 * len(answer.stages)


def placement(
    figure: Any, answer: plan.Plan, width: float, pods: Mapping[int, str] | None = None
) -> str:
    """Draw a box for each device in the color of its stage, grouped by pod; return it in words.

    Args:
        figure: what is painted.
        answer: the plan.
        width: of the picture, in inches.
        pods: names of the pods by number.
    """
    axis = figure.subplots()
    colors = palette.stages(len(answer.stages))
    columns, top, ticks = _columns(answer, width), 0, {}
    for process, rows in _rows(answer, width).items():
        ranks = [rank for rank in answer.ranks[:_SHOWN_RANKS] if rank.process == process]
        for number, rank in enumerate(ranks):
            column, row = number % columns, top + number // columns
            color = colors[rank.stage]
            axis.barh(row, 0.96, left=column, height=0.92, color=color, edgecolor=palette.QUIET)
            axis.text(
                column + 0.48,
                row,
                "\n".join((f"rank {rank.rank}", *_coordinates(answer.mesh, rank))),
                color=palette.ink(color),
                fontsize=svg.SMALL_POINTS,
                ha="center",
                va="center",
            )
        ticks[top + (rows - 1) / 2] = (pods or {}).get(process, f"pod {process}")
        top += rows
    axis.set_yticks(list(ticks), list(ticks.values()))
    axis.set_xlim(0, columns)
    axis.set_ylim(top - 0.5, -0.5)
    axis.set_xticks([])
    axis.tick_params(length=0)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)
    hidden = len(answer.ranks) - _SHOWN_RANKS
    more = f", the first {_SHOWN_RANKS} of {len(answer.ranks)} devices" if hidden > 0 else ""
    axis.set_title(f"Placement: {answer.mesh}{more}")
    swatches = [axis.barh(0, 0, color=color, edgecolor=palette.QUIET) for color in colors]
    names = [f"stage {number}: {show.layers(stage)}" for number, stage in enumerate(answer.stages)]
    figure.legend(swatches, names, loc="outside lower left", ncols=1 if width < svg.WIDE else 2)
    return (
        f"Placement: {len(answer.ranks)} devices in {len(ticks)} pods, mesh {answer.mesh}. "
        + " ".join(f"{name}." for name in names)
    )


def memory_height(answer: plan.Plan) -> float:
    """Return the inches that `memory` needs."""
    return 1.5 + 0.36 * len(answer.stages)


def memory(figure: Any, answer: plan.Plan) -> str:
    """Draw a bar for each stage with its peak, since not all is there at one time."""
    axis = figure.subplots()
    factor, unit = _memory_unit(answer)
    rows, left = range(len(answer.stages)), [0.0] * len(answer.stages)
    for (part, name), color in zip(_PARTS.items(), palette.MEMORY, strict=True):
        sizes = [getattr(stage.holds, part) / factor for stage in answer.stages]
        style = {"color": color, "edgecolor": palette.QUIET, "linewidth": 0.5}
        axis.barh(rows, sizes, 0.6, left, label=name, **style)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    peaks = [stage.holds.peak / factor for stage in answer.stages]
    limit = None if answer.memory is None else answer.memory / factor
    for row, (peak, end) in enumerate(zip(peaks, left, strict=True)):
        axis.plot([peak, peak], [row - 0.42, row + 0.42], color=palette.INK, linewidth=2)
        axis.annotate(
            f"peak {peak:.3g}",
            (max(peak, end, limit or 0.0), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=svg.SMALL_POINTS,
        )
    if limit is not None:
        axis.axvline(limit, color=palette.INK, linestyle="--", linewidth=1)
    room = 1.2 if limit is None else 1.3  # for the labels
    axis.set_xlim(0, room * max(*peaks, *left, limit or 0.0))
    axis.set_yticks(rows, [f"stage {row}" for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel(
        f"{unit} of a device; line: peak" + ("" if limit is None else "; dashed: limit")
    )
    axis.set_title("Memory")
    figure.legend(loc="outside lower left", ncols=3)
    words = ", ".join(f"stage {row} {peak:.3g}" for row, peak in enumerate(peaks))
    of_limit = "" if limit is None else f" of {limit:.3g}"
    return f"Memory: peaks in {unit}{of_limit}: {words}."


def schedule_height(drawn: Schedule, *, has_key: bool = True) -> float:
    """Return the inches that `schedule` needs."""
    return (1.5 if has_key else 0.9) + 0.42 * drawn.stages


def schedules(figure: Any, drawn: Mapping[str, Schedule], width: float) -> str:
    """Draw schedules one below the other over one axis of time; return them in words.

    Args:
        figure: what is painted.
        drawn: the schedules by their titles.
        width: of the picture, in inches.
    """
    heights = _heights(drawn)
    parts = figure.subfigures(len(drawn), 1, height_ratios=heights, squeeze=False)[:, 0]
    end, last = max(one.end for one in drawn.values()), list(drawn)[-1]
    return " ".join(
        schedule(part, one, title, width, end=end, has_key=title == last)
        for part, (title, one) in zip(parts, drawn.items(), strict=True)
    )


def schedules_height(drawn: Mapping[str, Schedule]) -> float:
    """Return the inches that `schedules` needs."""
    return sum(_heights(drawn))


def _heights(drawn: Mapping[str, Schedule]) -> Sequence[float]:
    last = list(drawn)[-1]
    return [schedule_height(one, has_key=title == last) for title, one in drawn.items()]


def schedule(
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
            _SCHEDULE_KEY,
            (0, 0),
            xytext=(0, -30),
            xycoords="axes fraction",
            textcoords="offset points",
            va="top",
            fontsize=svg.SMALL_POINTS,
            linespacing=1.4,
        )
    lasts = "" if drawn.step_seconds is None else f", {show.seconds(drawn.step_seconds)}"
    axis.set_title(f"{title}{lasts}")
    busy = [
        f"stage {stage} computes {show.seconds(_busy(drawn.spans, stage))}"
        for stage in range(drawn.stages)
    ]
    return f"{title}{lasts}: {', '.join(busy)}."


def shares_height(run: plan.Pipeline) -> float:
    """Return the inches that `shares` needs."""
    return 1.0 + 0.4 * len(run.placement.stages)


def shares(figure: Any, run: plan.Pipeline) -> str:
    """Draw two bars for each stage: its share of what all compute, measured and planned."""
    axis = figure.subplots()
    stages = run.placement.stages
    series = {
        "measured": [stage.busy_seconds for stage in stages],
        "planned": [stage.planned_seconds for stage in stages],
    }
    words = []
    for number, (label, seconds) in enumerate(series.items()):
        known = [float(value) for value in seconds if value is not None]
        if len(known) == len(stages) and sum(known) > 0:
            places = [stage.stage + 0.36 * number - 0.18 for stage in stages]
            widths = [100 * value / sum(known) for value in known]
            style = {"color": palette.VARIANTS[number], "hatch": "//" if number else None}
            bars = axis.barh(places, widths, 0.34, edgecolor=palette.PAPER, linewidth=0, **style)
            texts = [f"{label} {value:.0f} %" for value in widths]
            axis.bar_label(bars, texts, padding=4, fontsize=svg.SMALL_POINTS)
            words.append(f"{label} {', '.join(f'{value:.0f} %' for value in widths)}")
    axis.set_xlim(0, 120)
    axis.set_yticks([stage.stage for stage in stages], [f"stage {stage.stage}" for stage in stages])
    axis.set_ylim(len(stages) - 0.5, -0.5)
    axis.set_xticks(range(0, 101, 20))
    axis.set_xlabel("% of the work of all stages")
    axis.set_title("Work of each stage")
    return f"Shares of the work: {'; '.join(words)}."


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


def _bar(axis: Any, place: float, height: float, begin: float, seconds: float, color: str) -> None:
    axis.barh(
        place,
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


def _columns(answer: plan.Plan, width: float) -> int:
    """Return how many devices a row has: all rows of a pod are about equally long."""
    devices = _devices(answer)
    rows = -(-devices // max(2, int((width - 0.8) / 0.78)))
    return max(2, -(-devices // rows))


def _devices(answer: plan.Plan) -> int:
    """Return the devices of the pod that has most."""
    return max(1 + rank.device for rank in answer.ranks)


def _rows(answer: plan.Plan, width: float) -> Mapping[int, int]:
    """Return how many rows of boxes each pod needs."""
    counts: dict[int, int] = {}
    for rank in answer.ranks[:_SHOWN_RANKS]:
        counts[rank.process] = counts.get(rank.process, 0) + 1
    return {process: -(-count // _columns(answer, width)) for process, count in counts.items()}


def _box_height(answer: plan.Plan) -> float:
    lines = 1 + max(1, len(_coordinates(answer.mesh, answer.ranks[0])))
    return _LINE * (lines + 0.8)


def _coordinates(mesh: plan.Axes, rank: plan.Rank) -> Sequence[str]:
    """Return the place of a rank on every axis that has several."""
    degrees = mesh.model_dump()
    return [f"{name} {getattr(rank, name)}" for name, degree in degrees.items() if degree > 1]


def _memory_unit(answer: plan.Plan) -> tuple[int, str]:
    peak = max(stage.holds.peak for stage in answer.stages)
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return next((unit for unit in units if peak >= unit[0]), units[-1])
