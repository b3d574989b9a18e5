"""The report as pictures. Matplotlib is loaded when something is drawn: it takes a second."""

import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from tfparallel.compare import report

LOSS = "loss.svg"
SPEED = "speed.svg"
STALENESS = "staleness.svg"

_COLOURS = ("#0072b2", "#d55e00", "#56b4e9", "#e69f00")
"""Told apart by the colour-blind too; one for each variant."""

_STALENESS_SHOWN = 20
"""Staleness of more than this stands in one bar."""


def pictures(figures: report.Report, folder: pathlib.Path) -> dict[str, str]:
    """Draw into a folder; gives what each file shows."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text as text: small files that can be searched. No date, so that a repeat is equal.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tfparallel"}):
        drawn = {
            LOSS: (_loss(pyplot, figures), f"{figures.loss} by examples and by seconds"),
            SPEED: (_speed(pyplot, figures), "examples a second"),
        }
        if figures.staleness:
            drawn[STALENESS] = (_staleness(pyplot, figures), "staleness of the updates")
        for file, (figure, _) in drawn.items():
            figure.savefig(folder / file, metadata={"Date": None})
            pyplot.close(figure)
    return {file: shown for file, (_, shown) in drawn.items()}


def _loss(pyplot: Any, figures: report.Report) -> Any:
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for axis, label in zip(axes, ("examples", "seconds since the first step"), strict=True):
        for name, curve, colour in zip(figures.variants, figures.curves, _COLOURS, strict=False):
            places = curve.examples if label == "examples" else curve.seconds
            means = [statistics.fmean(losses) for losses in curve.losses]
            axis.plot(places, means, color=colour, marker=".", label=name)
            low, high = [min(one) for one in curve.losses], [max(one) for one in curve.losses]
            axis.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_xlabel(label)
        axis.set_yscale("log")
        axis.grid(visible=True, alpha=0.3)
    axes[0].set_ylabel(figures.loss)
    axes[0].legend()
    return figure


def _speed(pyplot: Any, figures: report.Report) -> Any:
    figure, axis = pyplot.subplots(figsize=(6, 3), layout="constrained")
    means = [cell.mean or 0.0 for cell in figures.speeds]
    errors = [cell.deviation or 0.0 for cell in figures.speeds]
    names = [name.replace(", ", ",\n") for name in figures.variants]
    bars = axis.bar(names, means, yerr=errors, capsize=4, color=_COLOURS[: len(names)])
    axis.bar_label(bars, [f"{mean:,.0f}" for mean in means], padding=2)
    axis.margins(y=0.15)
    axis.set_ylabel("examples/s")
    return figure


def _staleness(pyplot: Any, figures: report.Report) -> Any:
    figure, axis = pyplot.subplots(figsize=(6, 3), layout="constrained")
    width = 0.8 / len(figures.staleness)
    last = min(_STALENESS_SHOWN, max(max(counts) for counts in figures.staleness.values()))
    for place, (name, counts) in enumerate(figures.staleness.items()):
        shares = _shares(counts, last)
        left = [
            value + (place - (len(figures.staleness) - 1) / 2) * width for value in range(last + 1)
        ]
        axis.bar(left, shares, width, label=name, color=_COLOURS[figures.variants.index(name)])
    beyond = any(max(counts) > last for counts in figures.staleness.values())
    axis.set_xlabel(f"staleness in updates{f' ({last}: and more)' if beyond else ''}")
    axis.set_ylabel("share of updates, %")
    axis.legend()
    return figure


def _shares(counts: Any, last: int) -> Sequence[float]:
    """Hundredths of all updates for each staleness; the last takes in what is beyond."""
    total = sum(counts.values())
    shares = [0.0] * (last + 1)
    for value, count in counts.items():
        shares[min(value, last)] += 100 * count / total
    return shares
