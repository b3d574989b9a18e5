"""A plan as a picture, and a run next to its plan."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.planning import devices, plan_tables, schedules
from tfparallel_trainer.contract import plan, progress

_STATE = {"parameters": "parameters", "gradients": "gradients", "slots": "optimizer state"}
"""Parts of `plan.Bytes` that are there all the time, and their names for people."""

_RUNNING = {"activations": "activations", "working": "working memory"}
"""Those that are there while the stage computes."""

_UPDATE = "update"
"""What the optimizer computes, named as in the key of the schedule."""

_FILLS = {
    **dict(zip((*_STATE.values(), *_RUNNING.values()), palette.MEMORY, strict=True)),
    _UPDATE: palette.UPDATE,
}

_BAR = 0.6
"""Height of the bar of a stage."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of the memory of a device."""

    name: str
    begin: int
    """The bytes to its left."""
    size: int
    half: int = 0
    """Where it is drawn: in all of the bar, in its upper half (-1), or in its lower half (1)."""


def picture(answer: plan.Plan) -> svg.Picture:
    """Draw placement, memory and schedule."""
    planned, placed = schedules.Schedule.of_plan(answer), devices.Devices.of_plan(answer)
    heights = (
        devices.height(placed, svg.WIDE),
        memory_height(answer),
        schedules.height(planned),
    )
    with svg.canvas("Plan", width=svg.WIDE, height=sum(heights) + 0.3) as canvas:
        canvas.figure.suptitle(plan_tables.headline(answer), fontsize=svg.TEXT_POINTS)
        parts = canvas.figure.subfigures(3, 1, height_ratios=heights)
        canvas.description = " ".join(
            (
                devices.draw(parts[0], placed, canvas.width),
                memory(parts[1], answer),
                schedules.draw(parts[2], planned, "Schedule", canvas.width),
            )
        )
    return canvas.picture


def picture_of_run(run: plan.Pipeline) -> svg.Picture:
    """Draw how the stages of a run worked next to what was planned of them."""
    drawn = schedules.of_run(run)
    heights = (schedules.height_of_all(drawn), shares_height(run))
    with svg.canvas("Pipeline of a run", width=svg.WIDE, height=sum(heights) + 0.3) as canvas:
        canvas.figure.suptitle(f"stages {plan_tables.waiting(run)}", fontsize=svg.TEXT_POINTS)
        upper, lower = canvas.figure.subfigures(2, 1, height_ratios=heights)
        canvas.description = (
            f"{schedules.draw_all(upper, drawn, canvas.width)} {shares(lower, run)}"
        )
    return canvas.picture


def memory_height(answer: plan.Plan) -> float:
    """Return the inches that `memory` needs."""
    return 1.65 + 0.36 * len(answer.stages)


def parts(holds: plan.Bytes) -> Iterator[MemoryPart]:
    """Yield what a device holds.

    The optimizer's update follows when a stage has computed.
    """
    end = 0
    for field, name in _STATE.items():
        size = getattr(holds, field)
        yield MemoryPart(name, end, size)
        end += size
    if holds.update:
        yield MemoryPart(_UPDATE, end, holds.update, half=1)
    for field, name in _RUNNING.items():
        size = getattr(holds, field)
        yield MemoryPart(name, end, size, half=-1 if holds.update else 0)
        end += size


def memory(figure: Any, answer: plan.Plan) -> str:
    """Draw a bar for each stage with its peak, since not all is there at one time."""
    axis = figure.subplots()
    factor, unit = progress.find_byte_unit(max(stage.holds.peak for stage in answer.stages))
    stages = [[*parts(stage.holds)] for stage in answer.stages]
    bars = _bars(axis, stages, factor)
    ends = [max(part.begin + part.size for part in of_stage) / factor for of_stage in stages]
    peaks = [stage.holds.peak / factor for stage in answer.stages]
    limit = None if answer.memory is None else answer.memory / factor
    for row, (peak, end) in enumerate(zip(peaks, ends, strict=True)):
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
    axis.set_xlim(0, room * max(*peaks, *ends, limit or 0.0))
    axis.set_yticks(range(len(stages)), [f"stage {row}" for row in range(len(stages))])
    axis.set_ylim(len(stages) - 0.5, -0.5)
    of_limit = "" if limit is None else "; dashed: limit"
    axis.set_xlabel(f"{unit} of a device{of_limit}\nline: peak, the most at one time")
    axis.set_title("Memory")
    figure.legend(bars.values(), bars, loc="outside lower left", ncols=3)
    stage_texts = ", ".join(
        f"stage {row} {peak:.3g}" + (f" in the {_UPDATE}" if any(bar.half for bar in stage) else "")
        for row, (peak, stage) in enumerate(zip(peaks, stages, strict=True))
    )
    most = "" if limit is None else f" of {limit:.3g}"
    return f"Memory: peaks in {unit}{most}: {stage_texts}."


def _bars(axis: Any, stages: Sequence[Sequence[MemoryPart]], factor: int) -> Mapping[str, Any]:
    """Draw the parts of all stages; return a bar of each name, in the order of the palette."""
    drawn = {
        part.name: axis.barh(
            row + part.half * _BAR / 4,
            part.size / factor,
            _BAR / 2 if part.half else _BAR,
            part.begin / factor,
            color=_FILLS[part.name],
            edgecolor=palette.QUIET,
            linewidth=0.5,
        )
        for row, stage in enumerate(stages)
        for part in stage
    }
    return {name: drawn[name] for name in _FILLS if name in drawn}


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
    parts_text = []
    for number, (label, seconds) in enumerate(series.items()):
        measured = [float(value) for value in seconds if value is not None]
        if len(measured) == len(stages) and sum(measured) > 0:
            places = [stage.stage + 0.36 * number - 0.18 for stage in stages]
            widths = [100 * value / sum(measured) for value in measured]
            style = {"color": palette.VARIANTS[number], "hatch": "//" if number else None}
            bars = axis.barh(places, widths, 0.34, edgecolor=palette.PAPER, linewidth=0, **style)
            texts = [f"{label} {value:.0f} %" for value in widths]
            axis.bar_label(bars, texts, padding=4, fontsize=svg.SMALL_POINTS)
            parts_text.append(f"{label} {', '.join(f'{value:.0f} %' for value in widths)}")
    axis.set_xlim(0, 120)
    axis.set_yticks([stage.stage for stage in stages], [f"stage {stage.stage}" for stage in stages])
    axis.set_ylim(len(stages) - 0.5, -0.5)
    axis.set_xticks(range(0, 101, 20))
    axis.set_xlabel("% of the work of all stages")
    axis.set_title("Work of each stage")
    return f"Shares of the work: {'; '.join(parts_text)}."
