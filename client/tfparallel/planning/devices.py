"""The devices of a job as a picture: their pods, and the place of each on the mesh."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel.drawing import palette, svg
from tfparallel.planning import plan_tables
from tfparallel_trainer.contract import plan

_SHOWN = 64
"""Most devices of a picture."""

_LINE = 0.15
"""Inches of a line of small text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Devices:
    """Devices with their pods and their places."""

    mesh: plan.Axes
    ranks: Sequence[plan.Rank]
    stages: Sequence[str] = ()
    """What each stage holds; empty where the model is not divided."""
    pods: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Names of the pods by number, where they are known."""

    @classmethod
    def of_plan(cls, answer: plan.Plan, pods: Mapping[int, str] | None = None) -> "Devices":
        """Return the devices of a plan."""
        return cls(answer.mesh, answer.ranks, [*map(plan_tables.layers, answer.stages)], pods or {})

    @property
    def shown(self) -> Sequence[plan.Rank]:
        """The devices that a picture has room for."""
        return self.ranks[:_SHOWN]


def height(devices: Devices, width: float) -> float:
    """Return the inches that `draw` needs."""
    rows = sum(_rows(devices, width).values())
    return 0.8 + rows * _box_height(devices) + _LINE * 1.4 * len(devices.stages)


def draw(figure: Any, devices: Devices, width: float) -> str:
    """Draw a box for each device in the color of its stage, grouped by pod; return it in words.

    Args:
        figure: what is painted.
        devices: what is drawn.
        width: of the picture, in inches.
    """
    axis = figure.subplots()
    colors = palette.stages(devices.mesh.stage)
    columns, top, ticks = _columns(devices, width), 0, {}
    for process, rows in _rows(devices, width).items():
        ranks = [rank for rank in devices.shown if rank.process == process]
        for number, rank in enumerate(ranks):
            position = (number % columns, top + number // columns)
            _box(axis, devices.mesh, rank, position, colors[rank.stage])
        ticks[top + (rows - 1) / 2] = devices.pods.get(process, f"pod {process}")
        top += rows
    axis.set_yticks(list(ticks), list(ticks.values()))
    axis.set_xlim(0, columns)
    axis.set_ylim(top - 0.5, -0.5)
    axis.set_xticks([])
    axis.tick_params(length=0)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)
    links = " · ".join(_links(devices))
    axis.set_xlabel(links, fontsize=svg.SMALL_POINTS)
    hidden = len(devices.ranks) - _SHOWN
    more = f", the first {_SHOWN} of {len(devices.ranks)} devices" if hidden > 0 else ""
    axis.set_title(f"Placement: {devices.mesh}{more}")
    names = [f"stage {number}: {layers}" for number, layers in enumerate(devices.stages)]
    if names:
        swatches = [axis.barh(0, 0, color=color, edgecolor=palette.QUIET) for color in colors]
        columns = 1 if width < svg.WIDE else 2
        figure.legend(swatches, names, loc="outside lower left", ncols=columns)
    sentences = [
        f"Placement: {len(devices.ranks)} devices in {len(ticks)} pods, mesh {devices.mesh}",
        *([links] if links else []),
        *names,
    ]
    return " ".join(f"{sentence}." for sentence in sentences)


def _box(
    axis: Any, mesh: plan.Axes, rank: plan.Rank, position: tuple[int, int], color: str
) -> None:
    column, row = position
    axis.barh(row, 0.96, left=column, height=0.92, color=color, edgecolor=palette.QUIET)
    axis.text(
        column + 0.48,
        row,
        "\n".join((f"rank {rank.rank}", *plan_tables.coordinates(mesh, rank))),
        color=palette.ink(color),
        fontsize=svg.SMALL_POINTS,
        ha="center",
        va="center",
    )


def _links(devices: Devices) -> Iterator[str]:
    """Say along which axes devices exchange within a pod, and along which between pods."""
    places: dict[bool, list[str]] = {False: [], True: []}
    for axis, degree in devices.mesh.model_dump().items():
        if degree > 1:
            places[_leaves_pods(devices, axis)].append(axis)
    for leaves, axes in places.items():
        if axes:
            yield f"{'between pods' if leaves else 'within a pod'}: {', '.join(axes)}"


def _leaves_pods(devices: Devices, axis: str) -> bool:
    """Whether devices that differ along this axis alone are in several pods."""
    others = [name for name in plan.Axes.model_fields if name != axis]
    pods: dict[tuple[int, ...], set[int]] = {}
    for rank in devices.ranks:
        group = tuple(getattr(rank, name) for name in others)
        pods.setdefault(group, set()).add(rank.process)
    return any(len(group) > 1 for group in pods.values())


def _columns(devices: Devices, width: float) -> int:
    """Return how many devices a row has: all rows of a pod are about equally long."""
    count = max(1 + rank.device for rank in devices.ranks)
    rows = -(-count // max(2, int((width - 0.8) / 0.78)))
    return max(2, -(-count // rows))


def _rows(devices: Devices, width: float) -> Mapping[int, int]:
    """Return how many rows of boxes each pod needs."""
    counts: dict[int, int] = {}
    for rank in devices.shown:
        counts[rank.process] = counts.get(rank.process, 0) + 1
    return {process: -(-count // _columns(devices, width)) for process, count in counts.items()}


def _box_height(devices: Devices) -> float:
    lines = 1 + max(1, len(plan_tables.coordinates(devices.mesh, devices.ranks[0])))
    return _LINE * (lines + 0.8)
