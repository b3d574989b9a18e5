"""Colors: one set for each concept, so that no color means two things in one picture.

Each set is safe for color-blind readers. Its colors differ in lightness or in hatching, so that
they stay apart in grey.
"""

import dataclasses
from collections.abc import Sequence

INK = "#1a1a1a"
"""Text and axes."""

PAPER = "#ffffff"

_BLACK = "#000000"

_CONTRAST = 4.5
"""Of texts and what is behind them, at least (WCAG 2.2, AA)."""

QUIET = "#6b6b6b"
"""Grid lines, limits and remarks."""

MESSAGE = "#d9d9d9"
"""Sending and receiving in a schedule."""

UPDATE = "#707070"
"""Sums over replicas, optimizer and input between two schedules; memory of the optimizer."""

_STAGES = ("#00204d", "#3b496c", "#7c7b78", "#bcae6c", "#ffea46")
"""Anchors of matplotlib's cividis."""

_MICROBATCHES = ("#fdd0a2", "#fd8d3c", "#d94801", "#7f2704")

MEMORY = ("#3f007d", "#7a5cab", "#a99fd0", "#cfcbe6", "#f2f0f7")
"""Kinds of memory, in the order of `plan.Bytes`."""

VARIANTS = ("#0b4f8a", "#e08214")
"""Modes of training that are compared."""

TRAINING = VARIANTS[0]
"""Curves of training."""

EVALUATION = "#c2410c"
"""Curves of the evaluation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fill:
    """How an area is filled."""

    color: str
    hatch: str = ""
    """As matplotlib writes it."""

    @property
    def edge(self) -> str:
        """The color of its edge and its hatching; hatching must be seen on the color."""
        return max((QUIET, PAPER), key=lambda edge: contrast(self.color, edge) if self.hatch else 0)


def stages(count: int) -> Sequence[str]:
    """Return a color for each stage, from dark to light."""
    return _ramp(_STAGES, count)


def microbatches(count: int) -> Sequence[str]:
    """Return a color for each microbatch, from light to dark."""
    return _ramp(_MICROBATCHES, count)


def ink(color: str) -> str:
    """Return the color of a text that is easiest to read on a color, with a contrast of 4.5."""
    easier = max((PAPER, INK), key=lambda text: contrast(color, text))
    return easier if contrast(color, easier) >= _CONTRAST else _BLACK


def contrast(first: str, other: str) -> float:
    """Return the contrast ratio of two colors, from 1 to 21 (WCAG 2.2)."""
    darker, lighter = sorted((luminance(first), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    """Return the relative luminance of a color, from 0 to 1 (WCAG 2.2)."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(color))
    ]
    return sum(part * value for part, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _ramp(anchors: Sequence[str], count: int) -> Sequence[str]:
    """Return colors at even distances between anchors."""
    last = len(anchors) - 1
    places = [last * number / max(1, count - 1) for number in range(count)]
    return [_between(anchors, position, last) for position in places]


def _between(anchors: Sequence[str], position: float, last: int) -> str:
    index = min(int(position), last - 1)
    pairs = zip(_channels(anchors[index]), _channels(anchors[index + 1]), strict=True)
    mixed = (round(low + (high - low) * (position - index)) for low, high in pairs)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
