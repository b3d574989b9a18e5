"""The pictures of a report, each for a phone, and those with much to show also for a wide page."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.planning import devices, schedules
from tfparallel.planning import draw as planning
from tfparallel.report import content, goodput, history
from tfparallel_trainer.contract import plan
from tfparallel_trainer.contract import progress as contract_progress

ACTIVITIES: Mapping[goodput.Activity, palette.Fill] = {
    goodput.Activity.TRAINING: palette.Fill("#0b4f3a"),
    goodput.Activity.INPUT: palette.Fill("#8fd0b4", "----"),
    goodput.Activity.EVALUATION: palette.Fill("#2f7fc1"),
    goodput.Activity.CHECKPOINT: palette.Fill("#a9d1f0", "||||"),
    goodput.Activity.START: palette.Fill("#e0b93a"),
    goodput.Activity.RESTART: palette.Fill("#c2410c", "////"),
    goodput.Activity.LOST: palette.Fill("#f3a683", "xxxx"),
    goodput.Activity.END: palette.Fill("#a79cc9", "\\\\\\\\"),
    goodput.Activity.UNKNOWN: palette.Fill("#ffffff", ".."),
    goodput.Activity.WAITING: palette.Fill("#f0f0f0"),
}

SHOWN_REPLICAS = 40

_POD = palette.Fill("#c9c9c9")
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
        factor, unit = _time_unit(end)
        for part in curve.parts:
            marker = {"marker": "o", "markersize": 4} if len(part) < 3 else {}
            moments = [seconds / factor for seconds, _ in part]
            heights = [value for _, value in part]
            axis.plot(moments, heights, color=palette.TRAINING, **marker)
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


def shares(drawn: goodput.Goodput) -> Figure:
    """Draw how long each activity took."""
    rows = [(one, drawn.seconds[one]) for one in ACTIVITIES if one in drawn.seconds]
    title = "Time by activity"
    with svg.canvas(title, width=svg.NARROW, height=0.9 + 0.32 * len(rows)) as canvas:
        axis = canvas.figure.subplots()
        for row, (activity, seconds) in enumerate(rows):
            share = 100 * seconds / drawn.whole
            axis.barh(row, share, 0.7, **_fill(ACTIVITIES[activity]))
            text = f"{share:.1f} %, {content.duration(seconds)}"
            axis.annotate(
                text,
                (share, row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=svg.SMALL_POINTS,
            )
        axis.set_yticks(range(len(rows)), [str(activity) for activity, _ in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        largest = max((seconds for _, seconds in rows), default=1.0)
        axis.set_xlim(0, 155 * largest / (drawn.whole or 1.0))  # leaves room for the texts
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        axis.set_title(title)
        canvas.description = "; ".join(
            f"{activity} {seconds / drawn.whole:.1%}" for activity, seconds in rows
        )
    return Figure(canvas.picture)


def timeline(drawn: content.Content) -> Figure:
    """Draw what the job did when, and the processes of its replicas below."""
    return _in_both(lambda width: _timeline(drawn, width))


def _timeline(drawn: content.Content, width: float) -> svg.Picture:
    replicas = list(dict.fromkeys(pod.replica for pod in drawn.pods))
    hidden = len(replicas) - SHOWN_REPLICAS
    replicas = replicas[:SHOWN_REPLICAS]
    used = [activity for activity in ACTIVITIES if activity in drawn.goodput.seconds]
    columns = 3 if width < svg.WIDE else 6
    height = 1.55 + 0.28 * (1 + len(replicas)) + 0.18 * (-(-len(used) // columns))
    factor, unit = _time_unit(drawn.goodput.whole)
    title = "Timeline"
    with svg.canvas(title, width=width, height=height) as canvas:
        axis = canvas.figure.subplots()
        patches = {}
        for interval in drawn.goodput.intervals:
            patches[interval.activity] = axis.barh(
                0,
                (interval.end - interval.begin) / factor,
                0.8,
                interval.begin / factor,
                **_fill(ACTIVITIES[interval.activity]),
            )
        places = {replica: row for row, replica in enumerate(replicas, 1)}
        for pod in drawn.pods:
            if pod.replica in places:
                _pod(axis, pod, places[pod.replica], factor, width, drawn.goodput.whole)
        axis.set_yticks(range(len(replicas) + 1), ["job", *replicas])
        has_causes = any(attempt.lost is not None for attempt in drawn.attempts)
        axis.set_ylim(len(replicas) + 0.5, -1.2 if has_causes else -0.5)
        axis.set_xlim(0, drawn.goodput.whole / factor or 1)
        _causes(axis, drawn, factor, width)
        axis.set_xlabel(f"{unit} since the start" + ("; in bars: attempt" if drawn.pods else ""))
        more = f", {hidden} more replicas are left out" if hidden > 0 else ""
        axis.set_title(title + more)
        canvas.figure.legend(
            [patches[activity] for activity in used],
            [str(activity) for activity in used],
            loc="outside lower left",
            ncols=columns,
        )
        causes = [attempt.cause for attempt in drawn.attempts if attempt.lost is not None]
        counts = (len(drawn.attempts), len(replicas), len(drawn.pods))
        canvas.description = "Attempts: {}. Replicas: {}. Processes: {}.".format(*counts) + (
            f" Interruptions: {'; '.join(causes)}" if causes else ""
        )
    return canvas.picture


def _causes(axis: Any, drawn: content.Content, factor: float, width: float) -> None:
    """Mark each interruption with the number of its row in the table, and the cause if it fits."""
    total = 72 * (width - 1)
    points, free = total / (drawn.goodput.whole or 1.0), 0.0
    for attempt in drawn.attempts:
        if attempt.lost is None:
            continue
        axis.axvline(attempt.ended / factor, color=palette.INK, linestyle=":", linewidth=1)
        number = str(attempt.number)
        for label in (f"{number} {attempt.reason}", number):
            length = svg.SMALL_POINTS * (0.62 * len(label) + 0.5)
            begin = min(attempt.ended * points + 3, total - length)
            if begin >= free:
                place = (begin / points / factor, -0.75)
                axis.text(*place, label, fontsize=svg.SMALL_POINTS, va="center")
                free = begin + length
                break


def _pod(axis: Any, pod: history.Bar, row: int, factor: float, width: float, whole: float) -> None:
    length = pod.end - pod.begin
    axis.barh(row, length / factor, 0.7, pod.begin / factor, **_fill(_POD))
    if whole and 72 * (width - 1) * length / whole > 7 * len(str(pod.attempt)):
        axis.text(
            (pod.begin + pod.end) / 2 / factor,
            row,
            str(pod.attempt),
            ha="center",
            va="center",
            fontsize=svg.SMALL_POINTS,
        )


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

    return _in_both(paint)


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

    return _in_both(paint)


def planned_memory(answer: plan.Plan) -> Figure:
    """Draw what the planner expects each stage to hold."""
    with svg.canvas("Memory", width=svg.NARROW, height=planning.memory_height(answer)) as canvas:
        canvas.description = planning.memory(canvas.figure, answer)
    return Figure(canvas.picture)


def _in_both(paint: Callable[[float], svg.Picture]) -> Figure:
    narrow, wide = (paint(width) for width in _BOTH)
    return Figure(narrow, wide)


def _finish(canvas: svg.Canvas, axis: Any, title: str, unit: str) -> None:
    axis.set_title(title)
    axis.set_xlabel(unit)
    axis.grid(visible=True)
    axis.margins(x=0.02)


def _fill(fill: palette.Fill) -> Mapping[str, Any]:
    return {
        "facecolor": fill.color,
        "hatch": fill.hatch or None,
        "edgecolor": fill.edge,
        "linewidth": 0.3,
    }


def _time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit for an axis of so many seconds, and its name."""
    if seconds < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")
