"""A plan as a picture, and a run next to its plan."""

import pathlib
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.planning import devices, schedules, show
from tfparallel_trainer.contract import plan

_PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "slots": "optimizer state",
    "activations": "activations",
    "working": "working memory",
}
"""Names for people of the parts of `plan.Bytes`."""


def picture(answer: plan.Plan, file: pathlib.Path) -> None:
    """Draw placement, memory and schedule into a file."""
    planned, placed = schedules.Schedule.of_plan(answer), devices.Devices.of_plan(answer)
    heights = (
        devices.height(placed, svg.WIDE),
        memory_height(answer),
        schedules.height(planned),
    )
    with svg.canvas("Plan", width=svg.WIDE, height=sum(heights) + 0.3) as canvas:
        canvas.figure.suptitle(show.headline(answer), fontsize=svg.TEXT_POINTS)
        parts = canvas.figure.subfigures(3, 1, height_ratios=heights)
        canvas.description = " ".join(
            (
                devices.draw(parts[0], placed, canvas.width),
                memory(parts[1], answer),
                schedules.draw(parts[2], planned, "Schedule", canvas.width),
            )
        )
    file.write_text(canvas.picture.document, encoding="utf-8")


def picture_of_run(run: plan.Pipeline, file: pathlib.Path) -> None:
    """Draw how the stages of a run worked next to what was planned of them into a file."""
    drawn = schedules.of_run(run)
    heights = (schedules.height_of_all(drawn), shares_height(run))
    with svg.canvas("Pipeline of a run", width=svg.WIDE, height=sum(heights) + 0.3) as canvas:
        canvas.figure.suptitle(f"stages {show.waiting(run)}", fontsize=svg.TEXT_POINTS)
        upper, lower = canvas.figure.subfigures(2, 1, height_ratios=heights)
        canvas.description = (
            f"{schedules.draw_all(upper, drawn, canvas.width)} {shares(lower, run)}"
        )
    file.write_text(canvas.picture.document, encoding="utf-8")


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


def _memory_unit(answer: plan.Plan) -> tuple[int, str]:
    peak = max(stage.holds.peak for stage in answer.stages)
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    return next((unit for unit in units if peak >= unit[0]), units[-1])
