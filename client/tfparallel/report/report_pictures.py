"""The pictures of a report, each for a phone, and those with much to show also for a wide page."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.planning import devices, schedules
from tfparallel.planning import plan_picture as planning
from tfparallel.report import content
from tfparallel_trainer.contract import plan
from tfparallel_trainer.contract import progress as contract_progress

_BOTH = (svg.NARROW, svg.WIDE)
_CURVE_HEIGHT = 2.5


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A picture in the widths that a page chooses from."""

    narrow: svg.Picture
    wide: svg.Picture | None = None


def metric(drawn: content.Metric) -> Figure:
    """Draw loss or a metric over steps."""
    title = f"{drawn.name} by step"
    with svg.canvas(title, width=svg.NARROW, height=_CURVE_HEIGHT) as canvas:
        axis = canvas.figure.subplots()
        styles = {
            "training": {"color": palette.TRAINING},
            "evaluation": {"color": palette.EVALUATION, "linestyle": "--", "marker": "o"},
        }
        for curve in drawn.curves:
            for part in curve.parts:
                steps, values = zip(*part, strict=True)
                axis.plot(steps, values, markersize=4, **styles[curve.name])
        if "loss" in drawn.name:
            svg.scale(axis, (value for curve in drawn.curves for _, value in curve.points))
        _finish(canvas, axis, title, "step")
        svg.name_ends(
            canvas,
            axis,
            [
                svg.End(curve.name, curve.last, str(styles[curve.name]["color"]))
                for curve in drawn.curves
            ],
        )
        canvas.description = "; ".join(
            f"{curve.name} from {curve.points[0][1]:.4g} to {curve.last:.4g}"
            for curve in drawn.curves
        )
    return Figure(canvas.picture)


def throughput(curve: content.Curve, end: float) -> Figure:
    """Draw how many examples a second are trained on."""
    return _over_time(curve, "Examples a second", end)


def input_wait(curve: content.Curve, end: float) -> Figure:
    """Draw the share of the time that the devices wait for data."""
    limit = 100 * contract_progress.MAX_INPUT_WAIT
    return _over_time(curve, "Input wait, % of the time", end, limit, "slow above")


def memory(curve: content.Curve, end: float, limit: int | None) -> Figure:
    """Draw the memory of the coordinator's process against its limit."""
    scaled = [[(seconds, size / 2**20) for seconds, size in part] for part in curve.parts]
    return _over_time(
        content.Curve(curve.name, scaled),
        "Memory of the coordinator, MiB",
        end,
        None if limit is None else limit / 2**20,
        "limit",
    )


def _over_time(
    curve: content.Curve, title: str, end: float, limit: float | None = None, meaning: str = ""
) -> Figure:
    """Draw a figure over the time of the run, whose axis is that of the timeline."""
    with svg.canvas(title, width=svg.NARROW, height=_CURVE_HEIGHT) as canvas:
        axis = canvas.figure.subplots()
        values = [value for _, value in curve.points]
        factor, unit = time_unit(end)
        for part in curve.parts:
            marker = {"marker": "o", "markersize": 4} if len(part) < 3 else {}
            moments = [seconds / factor for seconds, _ in part]
            heights = [value for _, value in part]
            # The last point lies on the frame, which would cut it in half.
            axis.plot(moments, heights, color=palette.TRAINING, clip_on=False, **marker)
        top = max(values)
        if limit is not None:
            top = max(top, limit)
            axis.axhline(limit, color=palette.INK, linestyle="--", linewidth=1)
        axis.set_xlim(0, end / factor or 1)
        axis.set_ylim(0, 1.15 * top or 1)
        key = "" if limit is None else f"; dashed: {meaning}"  # at the line it would cover curves
        _finish(canvas, axis, title, f"{unit} since the start{key}")
        canvas.description = (
            f"From {min(values):,.4g} to {max(values):,.4g}, at the end {values[-1]:,.4g}"
            + ("" if limit is None else f"; {meaning}: {limit:,.4g}")
        )
    return Figure(canvas.picture)


def staleness(counts: Mapping[int, int]) -> Figure:
    """Draw how many updates had which staleness."""
    title = "Staleness of the updates"
    total = sum(counts.values())
    with svg.canvas(title, width=svg.NARROW, height=_CURVE_HEIGHT) as canvas:
        axis = canvas.figure.subplots()
        shares = [100 * count / total for count in counts.values()]
        axis.bar(list(counts), shares, 0.8, color=palette.TRAINING)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylabel("% of the updates")
        _finish(canvas, axis, title, "updates of others in between")
        mean = sum(value * count for value, count in counts.items()) / total
        canvas.description = f"{total:,} updates: mean {mean:.2f}, largest {max(counts)}"
    return Figure(canvas.picture)


def schedule(run: plan.Pipeline) -> Figure:
    """Draw the measured schedule above the planned one, with one axis of time."""
    drawn = schedules.of_run(run)

    def paint(width: float) -> svg.Picture:
        height = schedules.height_of_all(drawn)
        with svg.canvas("Pipeline", width=width, height=height) as canvas:
            canvas.description = schedules.draw_all(canvas.figure, drawn, width)
        return canvas.picture

    return in_both(paint)


def stage_shares(run: plan.Pipeline) -> Figure:
    """Draw the share of the work that each stage has, measured and planned."""
    height = planning.shares_height(run)
    with svg.canvas("Work of each stage", width=svg.NARROW, height=height) as canvas:
        canvas.description = planning.shares(canvas.figure, run)
    return Figure(canvas.picture)


def placement(placed: devices.Devices) -> Figure:
    """Draw which device has which place on the mesh."""

    def paint(width: float) -> svg.Picture:
        height = devices.height(placed, width)
        with svg.canvas("Placement", width=width, height=height) as canvas:
            canvas.description = devices.draw(canvas.figure, placed, width)
        return canvas.picture

    return in_both(paint)


def planned_memory(answer: plan.Plan) -> Figure:
    """Draw what the planner expects each stage to hold."""
    with svg.canvas("Memory", width=svg.NARROW, height=planning.memory_height(answer)) as canvas:
        canvas.description = planning.memory(canvas.figure, answer)
    return Figure(canvas.picture)


def in_both(paint: Callable[[float], svg.Picture]) -> Figure:
    """Draw a picture in both widths."""
    narrow, wide = (paint(width) for width in _BOTH)
    return Figure(narrow, wide)


def _finish(canvas: svg.Canvas, axis: Any, title: str, unit: str) -> None:
    axis.set_title(title)
    axis.set_xlabel(unit)
    axis.grid(visible=True)
    axis.margins(x=0.02)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit for an axis of so many seconds, and its name."""
    if seconds < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")
