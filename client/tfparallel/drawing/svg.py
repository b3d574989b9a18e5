"""SVG with alternative text, drawn by matplotlib, which is loaded when something is drawn.

The extra `pictures` installs matplotlib; loading it takes a second. Text stays text, so that files
are small and can be searched. Equal data gives equal bytes: no date, and names that follow from the
content.
"""

import contextlib
import dataclasses
import hashlib
import html
import importlib.util
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfparallel.drawing import palette

NARROW = 3.9
"""Inches: a picture that a phone shows at nearly its own size."""

WIDE = 7.1
"""Inches: a picture for a page of paper or a screen."""

TEXT_POINTS = 9
SMALL_POINTS = 8

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": TEXT_POINTS,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # Verdana is as wide, where the first is missing
    "axes.titlesize": TEXT_POINTS,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": palette.QUIET,
    "axes.labelcolor": palette.INK,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "text.color": palette.INK,
    "hatch.linewidth": 0.7,
    "legend.fontsize": SMALL_POINTS,
    "legend.frameon": False,
    "text.parse_math": False,
}

_STEPS = ((1.4, (1.0, 2.0, 5.0)), (2.6, (1.0, 3.0)))
"""Which ticks a decade has on an axis of fewer decades; else it has one."""

_TICKS = 6
"""Most decades with a tick."""

_REMOVED = re.compile(r"\s{0,9}<(metadata|defs)>.{0,1000}?</\1>", re.DOTALL)
"""What says who wrote it, and a style that would count for the whole page."""

_NAME = re.compile(r'(\bid="|url\(#|href="#)')
_ROOT = re.compile(r"<svg\b[^<>]*>")


MISSING = "matplotlib is missing: install 'tfparallel[pictures]'"
"""Why there are no pictures, and what to do."""


def is_available() -> bool:
    """Whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A picture, and what it says in words."""

    title: str
    description: str
    """What a reader who does not see the picture needs."""
    document: str
    """A whole SVG file."""

    @property
    def element(self) -> str:
        """The SVG for a place in a page of HTML."""
        return self.document[self.document.index("<svg") :]


class Canvas:
    """A picture that is drawn in the body of `canvas`."""

    def __init__(self, figure: Any, title: str) -> None:
        self.figure = figure
        """matplotlib's."""
        self.title = title
        self.description = ""
        self.width, self.height = (float(inches) for inches in figure.get_size_inches())
        self._picture: Picture | None = None

    @property
    def is_narrow(self) -> bool:
        """Whether it is drawn for a phone."""
        return self.width < (NARROW + WIDE) / 2

    @property
    def picture(self) -> Picture:
        """What was drawn, after the body."""
        if self._picture is None:
            raise RuntimeError("the picture is not drawn yet")
        return self._picture

    def close(self) -> None:
        """Turn what is drawn into SVG."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", metadata={"Date": None})
        document = _label(out.getvalue(), self.title, self.description, self.width)
        self._picture = Picture(self.title, self.description, document)


@contextlib.contextmanager
def canvas(title: str, *, width: float, height: float) -> Iterator[Canvas]:
    """Draw a picture in the body, which also sets its description; sizes are in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": title}):
        drawing = Canvas(Figure(figsize=(width, height), layout="constrained"), title)
        yield drawing
        drawing.close()


def scale(axis: Any, values: Iterable[float]) -> None:
    """Make the vertical axis logarithmic where values differ by a factor of ten or more."""
    from matplotlib import ticker

    positive = sorted(values)
    if positive and positive[0] > 0 and positive[-1] >= 10 * positive[0]:
        decades = math.log10(positive[-1] / positive[0])
        steps = next((steps for most, steps in _STEPS if decades < most), (1.0,))
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=_TICKS))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_locator(ticker.NullLocator())


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """What is written next to the end of a curve."""

    name: str
    value: float
    """Its last."""
    color: str


def name_ends(canvas: Canvas, axis: Any, ends: Sequence[End]) -> None:
    """Write names to the right of curves, as high as these end, but apart from each other.

    Args:
        canvas: the picture, of which the axis is the only one above the other.
        axis: matplotlib's, with all that is drawn.
    """
    axis.get_ylim()  # Matplotlib fits the axis to the curves when it is asked
    to_share = axis.transData + axis.transAxes.inverted()
    apart = 1.4 * SMALL_POINTS / (72 * (canvas.height - 0.8))  # 0.8 inches: title and labels
    ordered = sorted(ends, key=lambda end: end.value)
    places = [float(to_share.transform((0.0, end.value))[1]) for end in ordered]
    for end, height in zip(ordered, _spread(places, apart), strict=True):
        axis.annotate(
            end.name,
            (1, height),
            (4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=end.color,
            fontsize=SMALL_POINTS,
            va="center",
        )


def _spread(places: Sequence[float], apart: float) -> Sequence[float]:
    """Move rising places apart, upwards and then down from 1, the top of the axis."""
    rising, height = [], -apart
    for end in places:
        height = max(height + apart, end)
        rising.append(height)
    falling, height = [], 1.0 + apart
    for end in reversed(rising):
        height = min(height - apart, end)
        falling.append(height)
    return falling[::-1]


def _label(document: str, title: str, description: str, width: float) -> str:
    """Add alternative text and unique ids."""
    key = "p" + hashlib.sha256(f"{title} {description} {width}".encode()).hexdigest()[:8]
    bare = _NAME.sub(lambda start: f"{start[1]}{key}-", _REMOVED.sub("", document, count=2))
    root = _ROOT.search(bare)
    if root is None:
        raise RuntimeError("matplotlib wrote no svg element")
    names = (
        f'role="img" aria-labelledby="{key}-title {key}-desc"'
        ' style="stroke-linejoin: round; stroke-linecap: butt"'
    )
    texts = "".join(
        f'\n <{tag} id="{key}-{tag}">{html.escape(text, quote=False)}</{tag}>'
        for tag, text in (("title", title), ("desc", description))
    )
    return f"{bare[: root.end() - 1]} {names}>{texts}{bare[root.end() :]}"
