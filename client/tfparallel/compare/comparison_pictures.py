"""The comparison as pictures."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel.compare import comparison_report
from tfparallel.drawing import palette, svg

LOSS = "loss.svg"
SPEED = "speed.svg"
STALENESS = "staleness.svg"

_STALENESS_SHOWN = 20
"""The largest staleness with its own bar. The last bar counts all larger ones."""


def pictures(figures: comparison_report.Pictured) -> Mapping[str, svg.Picture]:
    """Draw all pictures; return them by the names of their files."""
    drawn = {LOSS: loss(figures), SPEED: speed(figures)}
    if figures.staleness:
        drawn[STALENESS] = staleness(figures)
    return drawn


def loss(figures: comparison_report.Pictured) -> svg.Picture:
    """Draw the loss over examples and over time."""
    title = f"{figures.loss} by examples and by seconds"
    with svg.canvas(title, width=svg.WIDE, height=3.6) as canvas:
        axes = canvas.figure.subplots(1, 2, sharey=True)
        for axis, label in zip(axes, ("examples", "seconds since the first step"), strict=True):
            for number, (name, curve) in enumerate(
                zip(figures.variants, figures.curves, strict=True)
            ):
                places = curve.examples if label == "examples" else curve.seconds
                means = [statistics.fmean(losses) for losses in curve.losses]
                axis.plot(places, means, label=name, **_line(number))
                low, high = [[of(losses) for losses in curve.losses] for of in (min, max)]
                axis.fill_between(places, low, high, color=_color(number), alpha=0.2, linewidth=0)
            axis.set_xlabel(label)
            axis.grid(visible=True)
        axes[0].set_ylabel(figures.loss)
        every = (value for curve in figures.curves for losses in curve.losses for value in losses)
        svg.scale(axes[0], every)
        lines, names = axes[0].get_legend_handles_labels()
        canvas.figure.legend(lines, names, loc="outside lower left", ncols=len(names))
        canvas.description = "Last values: " + "; ".join(
            f"{name} {statistics.fmean(curve.losses[-1]):.3g}"
            for name, curve in zip(figures.variants, figures.curves, strict=True)
            if curve.losses
        )
    return canvas.picture


def speed(figures: comparison_report.Pictured) -> svg.Picture:
    """Draw how many examples a second each variant trains on."""
    means = [speed.mean for speed in figures.speeds]
    deviations = [speed.deviation or 0.0 for speed in figures.speeds]
    with svg.canvas("examples a second", width=6, height=0.9 + 0.4 * len(means)) as canvas:
        axis = canvas.figure.subplots()
        rows = range(len(means))
        axis.barh(rows, means, 0.7, **_fills(len(means)))
        axis.errorbar(means, rows, xerr=deviations, fmt="none", ecolor=palette.INK, capsize=4)
        ends = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
        for row, end in enumerate(ends):
            axis.annotate(
                f"{means[row]:,.0f}", (end, row), (6, 0), textcoords="offset points", va="center"
            )
        axis.set_xlim(0, 1.2 * max([*ends, 1e-9]))
        axis.set_yticks(rows, figures.variants)
        axis.set_ylim(len(means) - 0.5, -0.5)
        axis.set_xlabel("examples a second; line: standard deviation over the seeds")
        canvas.description = "; ".join(
            f"{name} {mean:,.0f}" for name, mean in zip(figures.variants, means, strict=True)
        )
    return canvas.picture


def staleness(figures: comparison_report.Pictured) -> svg.Picture:
    """Draw how stale updates were, in hundredths of all updates of a variant."""
    last = min(_STALENESS_SHOWN, max(max(counts) for counts in figures.staleness.values()))
    beyond = any(max(counts) > last for counts in figures.staleness.values())
    with svg.canvas("staleness of the updates", width=6, height=3.2) as canvas:
        axis = canvas.figure.subplots()
        width = 0.8 / len(figures.staleness)
        for position, (name, counts) in enumerate(figures.staleness.items()):
            shares = shares_by_staleness(counts, last)
            shift = (position - (len(figures.staleness) - 1) / 2) * width
            left = [value + shift for value in range(last + 1)]
            number = figures.variants.index(name)
            axis.bar(left, shares, width, label=name, color=_color(number), hatch=_hatch(number))
        axis.set_xlabel(f"staleness in updates{f' ({last}: and more)' if beyond else ''}")
        axis.set_ylabel("% of the updates")
        axis.xaxis.get_major_locator().set_params(integer=True)
        canvas.figure.legend(loc="outside lower left", ncols=2)
        canvas.description = "Most frequent: " + "; ".join(
            f"{name} {max(counts, key=lambda value: counts[value])} updates"
            for name, counts in figures.staleness.items()
        )
    return canvas.picture


def shares_by_staleness(counts: Mapping[int, int], last: int) -> Sequence[float]:
    """Return hundredths of all updates for each staleness; the last takes in what is beyond."""
    total = sum(counts.values())
    shares = [0.0] * (last + 1)
    for value, count in counts.items():
        shares[min(value, last)] += 100 * count / total
    return shares


def _line(number: int) -> Mapping[str, Any]:
    """Return how a curve is drawn: the later of two modes is thinner, and may lie on the other."""
    below = len(palette.VARIANTS) - 1 - number % len(palette.VARIANTS)
    return {
        "color": _color(number),
        "linestyle": "--" if _is_slow(number) else "-",
        "linewidth": 1.5 + 2 * below,
        "marker": "os^v"[number % 4],
        "markersize": 4 + 3 * below,
    }


def _fills(count: int) -> Mapping[str, Any]:
    numbers = range(count)
    return {
        "color": [_color(number) for number in numbers],
        "hatch": [_hatch(number) for number in numbers],
        "edgecolor": palette.PAPER,
        "linewidth": 0,
    }


def _color(number: int) -> str:
    """Return the color of a mode; variants with a slow worker follow those without."""
    return palette.VARIANTS[number % len(palette.VARIANTS)]


def _hatch(number: int) -> str:
    return "//" if _is_slow(number) else ""


def _is_slow(number: int) -> bool:
    return number >= len(palette.VARIANTS)
