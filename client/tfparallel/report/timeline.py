"""The pictures of where the time of a run went."""

from collections.abc import Mapping
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.report import chronology, content, history, report_pictures
from tfparallel_operator.api import names
from tfparallel_operator.core.status import goodput

ACTIVITIES: Mapping[chronology.LoggedActivity, palette.Fill] = {
    chronology.LoggedActivity.TRAINING: palette.Fill("#0b4f3a"),
    chronology.LoggedActivity.INPUT: palette.Fill("#8fd0b4", "----"),
    chronology.LoggedActivity.EVALUATION: palette.Fill("#2f7fc1"),
    chronology.LoggedActivity.CHECKPOINT: palette.Fill("#a9d1f0", "||||"),
    chronology.LoggedActivity.START: palette.Fill("#e0b93a"),
    chronology.LoggedActivity.RESTART: palette.Fill("#c2410c", "////"),
    chronology.LoggedActivity.LOST: palette.Fill("#f3a683", "xxxx"),
    chronology.LoggedActivity.END: palette.Fill("#a79cc9", "\\\\\\\\"),
    chronology.LoggedActivity.UNKNOWN: palette.Fill("#ffffff", ".."),
    chronology.LoggedActivity.WAITING: palette.Fill("#f0f0f0"),
}

SHOWN_REPLICAS = 40

_POD = palette.Fill("#c9c9c9")


def shares(measured: goodput.Goodput) -> report_pictures.Figure:
    """Draw how long each activity took."""
    rows = [(activity, seconds) for activity, seconds in measured.seconds.items() if seconds]
    title = "Time by activity"
    with svg.canvas(title, width=svg.NARROW, height=0.9 + 0.32 * len(rows)) as canvas:
        axis = canvas.figure.subplots()
        for row, (activity, seconds) in enumerate(rows):
            share = 100 * seconds / measured.age
            axis.barh(row, share, 0.7, **_fill(_find_fill(activity)))
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
        axis.set_xlim(0, 155 * largest / measured.age)  # leaves room for the texts
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        axis.set_title(title)
        canvas.description = "; ".join(
            f"{activity} {seconds / measured.age:.1%}" for activity, seconds in rows
        )
    return report_pictures.Figure(canvas.picture)


def _find_fill(activity: names.Activity) -> palette.Fill:
    """Return the fill that the timeline has for an activity of goodput."""
    if activity is names.Activity.RECOMPUTING:
        return ACTIVITIES[chronology.LoggedActivity.LOST]
    fills = {logged.value: fill for logged, fill in ACTIVITIES.items()}
    return fills.get(activity.value, ACTIVITIES[chronology.LoggedActivity.WAITING])


def picture(drawn: content.Content) -> report_pictures.Figure:
    """Draw what the job did when, and the processes of its replicas below."""
    return report_pictures.in_both(lambda width: _timeline(drawn, width))


def _timeline(drawn: content.Content, width: float) -> svg.Picture:
    replicas = list(dict.fromkeys(pod.replica for pod in drawn.pods))
    hidden = len(replicas) - SHOWN_REPLICAS
    replicas = replicas[:SHOWN_REPLICAS]
    used = [activity for activity in ACTIVITIES if activity in drawn.chronology.seconds]
    columns = 3 if width < svg.WIDE else 6
    height = 1.55 + 0.28 * (1 + len(replicas)) + 0.18 * (-(-len(used) // columns))
    factor, unit = report_pictures.time_unit(drawn.chronology.length)
    title = "Timeline"
    with svg.canvas(title, width=width, height=height) as canvas:
        axis = canvas.figure.subplots()
        patches = {}
        for interval in drawn.chronology.intervals:
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
                _pod(axis, pod, places[pod.replica], factor, width, drawn.chronology.length)
        axis.set_yticks(range(len(replicas) + 1), ["job", *replicas])
        has_causes = any(attempt.lost is not None for attempt in drawn.attempts)
        axis.set_ylim(len(replicas) + 0.5, -1.2 if has_causes else -0.5)
        axis.set_xlim(0, drawn.chronology.length / factor or 1)
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
    points, free = total / (drawn.chronology.length or 1.0), 0.0
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
