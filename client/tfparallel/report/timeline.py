"""The pictures of where the time of a run went."""

from collections.abc import Mapping
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.report import content, goodput, history, report_pictures

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


def shares(drawn: goodput.Goodput) -> report_pictures.Figure:
    """Draw how long each activity took."""
    rows = [
        (activity, drawn.seconds[activity]) for activity in ACTIVITIES if activity in drawn.seconds
    ]
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
    return report_pictures.Figure(canvas.picture)


def picture(drawn: content.Content) -> report_pictures.Figure:
    """Draw what the job did when, and the processes of its replicas below."""
    return report_pictures.in_both(lambda width: _timeline(drawn, width))


def _timeline(drawn: content.Content, width: float) -> svg.Picture:
    replicas = list(dict.fromkeys(pod.replica for pod in drawn.pods))
    hidden = len(replicas) - SHOWN_REPLICAS
    replicas = replicas[:SHOWN_REPLICAS]
    used = [activity for activity in ACTIVITIES if activity in drawn.goodput.seconds]
    columns = 3 if width < svg.WIDE else 6
    height = 1.55 + 0.28 * (1 + len(replicas)) + 0.18 * (-(-len(used) // columns))
    factor, unit = report_pictures.time_unit(drawn.goodput.whole)
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
                position = (begin / points / factor, -0.75)
                axis.text(*position, label, fontsize=svg.SMALL_POINTS, va="center")
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


def _fill(fill: palette.Fill) -> Mapping[str, Any]:
    return {
        "facecolor": fill.color,
        "hatch": fill.hatch or None,
        "edgecolor": fill.edge,
        "linewidth": 0.3,
    }
