"""A plan as a picture, and a run beside its plan.

Matplotlib is loaded when something is drawn: it takes a second.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from tfparallel.planning import show
from tfparallel_trainer.contract import plan

_COLOURS = ("#0072b2", "#d55e00", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#999999")
"""Told apart by the colour-blind too."""

_PARTS = ("parameters", "gradients", "slots", "activations", "working")
_SHOWN_RANKS = 64


def picture(answer: plan.Plan, file: pathlib.Path) -> None:
    """Draw placement, memory and schedule into a file."""
    with _axes(file, 3, show.headline(answer)) as axes:
        _placement(axes[0], answer)
        _memory(axes[1], answer)
        _schedule(axes[2], answer.spans, len(answer.stages), "schedule of a step, update left out")


def picture_of_run(run: plan.Pipeline, file: pathlib.Path) -> None:
    """Draw how the stages of a run worked beside what was planned of them into a file."""
    shown = [("measured", run.spans)]
    if run.planned is not None:
        shown.append(("planned", run.planned.spans))
    stages = run.placement.mesh.stage
    with _axes(file, len(shown) + 1, f"stages {show.waiting(run)}") as axes:
        for axis, (name, spans) in zip(axes, shown, strict=False):
            _schedule(axis, spans, stages, f"{name}: a step of one replica, update left out")
        _shares(axes[-1], run)


@contextlib.contextmanager
def _axes(file: pathlib.Path, rows: int, title: str) -> Iterator[Sequence[Any]]:
    """Draw in the body; what is drawn goes into a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text as text: small files that can be searched. No date, so that a repeat is equal.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tfparallel"}):
        figure, axes = pyplot.subplots(rows, 1, figsize=(9, 2 + 2 * rows), layout="constrained")
        figure.suptitle(title, fontsize=9)
        yield axes
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)


def _placement(axis: Any, answer: plan.Plan) -> None:
    """A box for each device, in the colour of its stage; a row for each pod."""
    for rank in answer.ranks[:_SHOWN_RANKS]:
        colour = _COLOURS[rank.stage % len(_COLOURS)]
        axis.barh(rank.process, 0.94, left=rank.device, height=0.9, color=colour, alpha=0.75)
        label = f"rank {rank.rank}: stage {rank.stage}\n{show.layers(answer.stages[rank.stage])}"
        axis.text(rank.device + 0.47, rank.process, label, ha="center", va="center", fontsize=6)
    axis.set_yticks(sorted({rank.process for rank in answer.ranks[:_SHOWN_RANKS]}))
    axis.set_xticks([])
    axis.invert_yaxis()
    axis.set_ylabel("pod")
    axis.set_title("placement", fontsize=9)


def _memory(axis: Any, answer: plan.Plan) -> None:
    """A bar for each stage; its peak is marked, since not all is there at one time."""
    names = [f"stage {index}" for index in range(len(answer.stages))]
    bottom = [0.0] * len(names)
    for part, colour in zip(_PARTS, _COLOURS, strict=False):
        heights = [getattr(stage.holds, part) / 2**20 for stage in answer.stages]
        axis.bar(names, heights, 0.6, bottom=bottom, color=colour, label=part)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    peaks = [stage.holds.peak / 2**20 for stage in answer.stages]
    axis.scatter(names, peaks, marker="_", s=900, color="black", label="peak")
    if answer.memory is not None:
        axis.axhline(answer.memory / 2**20, color="black", linestyle="--", label="limit")
    axis.set_ylabel("MiB of a device")
    axis.legend(fontsize=6, ncols=4)
    axis.set_title("memory", fontsize=9)


def _schedule(axis: Any, spans: Sequence[plan.Span], stages: int, title: str) -> None:
    """A row for each stage over the time of a step; a colour for each microbatch."""
    for span in spans:
        if span.work == plan.MESSAGE:
            colour, hatch = "#dddddd", None
        else:
            colour = _COLOURS[span.microbatch % len(_COLOURS)]
            hatch = "//" if span.work == "backward" else None
        axis.barh(
            span.stage,
            (span.end - span.begin) * 1e3,
            left=span.begin * 1e3,
            height=0.8,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.3,
        )
    axis.set_yticks(range(stages))
    axis.invert_yaxis()
    axis.set_ylabel("stage")
    axis.set_xlabel("milliseconds; hatched: backward, grey: messages, white: waiting")
    axis.set_title(title, fontsize=9)


def _shares(axis: Any, run: plan.Pipeline) -> None:
    """Two bars for each stage: its share of what all compute, as measured and as planned."""
    stages = run.placement.stages
    measured = [one.busy_seconds for one in stages]
    planned = [one.planned_seconds for one in stages]
    for number, (label, seconds) in enumerate((("measured", measured), ("planned", planned))):
        known = [float(one) for one in seconds if one is not None]
        if len(known) == len(stages) and sum(known) > 0:
            places = [one.stage + 0.4 * number - 0.2 for one in stages]
            heights = [100 * one / sum(known) for one in known]
            axis.bar(places, heights, 0.36, color=_COLOURS[number], label=label)
    axis.set_xticks([one.stage for one in stages])
    axis.set_xlabel("stage")
    axis.set_ylabel("% of the work")
    axis.legend(fontsize=6)
    axis.set_title("how long stages compute", fontsize=9)
