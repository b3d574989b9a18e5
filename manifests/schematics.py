"""A schematic of each kind of parallelism: the pictures of docs/explanation/strategies.md.

Each has a title and a description, needs no font or host, and differs by lightness as by color, so
that it is legible in grey and on dark pages.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from xml.sax import saxutils

from testing import paths

WIDTH, HEIGHT = 480, 230
INK, DEVICE, WEIGHTS, DATA = "#1f2937", "#f3f4f6", "#a5b4fc", "#fde68a"


@dataclasses.dataclass
class Picture:
    """An SVG that grows."""

    title: str
    description: str
    parts: list[str] = dataclasses.field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, fill: str, *lines: str) -> None:
        """Add a box with centered lines."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}"'
            f' stroke="{INK}"/>'
        )
        top = y + height / 2 - 8 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width // 2, int(top + 16 * number), line)

    def text(self, x: int, y: int, line: str, anchor: str = "middle") -> None:
        """Add a line of text."""
        escaped_line = saxutils.escape(line)
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escaped_line}</text>')

    def device(self, x: int, y: int, width: int, height: int, name: str) -> None:
        """Add a device, with its name in its top line."""
        self.box(x, y, width, height, DEVICE)
        self.text(x + width // 2, y + 18, name)

    def arrow(self, x1: int, y1: int, x2: int, y2: int, *, both: bool = False) -> None:
        """Add an arrow, with two heads if both sides send."""
        start = ' marker-start="url(#head)"' if both else ""
        self.parts.append(
            f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{INK}" stroke-width="2" fill="none"'
            f' marker-end="url(#head)"{start}/>'
        )

    def render(self) -> str:
        """Return the file."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
                f' width="{WIDTH}" height="{HEIGHT}" role="img"'
                ' aria-labelledby="title description">',
                f'<title id="title">{saxutils.escape(self.title)}</title>',
                f'<desc id="description">{saxutils.escape(self.description)}</desc>',
                '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
                ' markerHeight="7" orient="auto-start-reverse">'
                f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
                f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
                f'<g font-family="sans-serif" font-size="13" fill="{INK}">',
                *self.parts,
                "</g>",
                "</svg>\n",
            ]
        )


def files() -> dict[Path, str]:
    """Return every picture."""
    return {
        paths.PAGES / f"images/parallel-{name}.svg": draw().render()
        for name, draw in _PICTURES.items()
    }


def _data() -> Picture:
    picture = Picture(
        "Data parallelism",
        "Two devices hold the whole model. Each computes half of the batch, and they add up their"
        " gradients before each update.",
    )
    for x, half in ((20, "first"), (300, "second")):
        picture.device(x, 20, 160, 100, f"{half} device")
        picture.box(x + 15, 50, 130, 55, WEIGHTS, "whole model")
        picture.box(x, 165, 160, 45, DATA, f"{half} half", "of the batch")
        picture.arrow(x + 80, 165, x + 80, 122)
    picture.arrow(184, 78, 296, 78, both=True)
    picture.text(240, 50, "gradients")
    picture.text(240, 66, "added up")
    return picture


def _servers() -> Picture:
    picture = Picture(
        "Parameter servers",
        "A server holds the weights. Each worker fetches them, computes a batch of its own, and"
        " sends its gradients, without waiting for other workers.",
    )
    picture.device(100, 15, 280, 65, "parameter server")
    picture.box(120, 40, 240, 30, WEIGHTS, "all weights")
    for x, name in ((20, "worker 0"), (180, "worker 1"), (340, "worker 2")):
        picture.device(x, 140, 120, 75, name)
        picture.box(x + 10, 167, 100, 38, DATA, "its batch")
        middle = 240 + (x - 180) // 2
        picture.arrow(middle - 8, 82, x + 48, 138)
        picture.arrow(x + 66, 138, middle + 10, 82)
    picture.text(112, 100, "weights", "end")
    picture.text(370, 100, "gradients", "start")
    return picture


def _stages() -> Picture:
    picture = Picture(
        "Stages, a pipeline",
        "The first device holds the first layers and the second the others. Activations of"
        " microbatches go forward, their gradients go back.",
    )
    for x, name, layers in ((120, "stage 0", "layers 1 to 3"), (340, "stage 1", "layers 4 to 6")):
        picture.device(x, 45, 120, 120, name)
        picture.box(x + 12, 75, 96, 75, WEIGHTS, "layers", layers.removeprefix("layers "))
    for number in range(4):
        picture.box(23, 40 + 34 * number, 58, 26, DATA, f"part {number}")
    picture.arrow(84, 105, 117, 105)
    picture.arrow(244, 90, 336, 90)
    picture.arrow(336, 130, 244, 130)
    picture.text(290, 80, "activations")
    picture.text(290, 150, "gradients")
    picture.text(52, 200, "microbatches")
    return picture


def _tensor() -> Picture:
    picture = Picture(
        "Tensor parallelism",
        "Each layer is split: either device holds half of its channels, features or heads. Both"
        " compute the whole batch and exchange activations at each layer.",
    )
    for x, half in ((20, "left"), (300, "right")):
        picture.device(x, 15, 160, 140, f"{half} device")
        for number in range(3):
            name = f"{half} half of layer {3 - number}"
            picture.box(x + 5, 40 + 38 * number, 150, 30, WEIGHTS, name)
    for number in range(3):
        picture.arrow(184, 55 + 38 * number, 296, 55 + 38 * number, both=True)
    picture.text(240, 30, "activations")
    picture.box(120, 185, 240, 32, DATA, "the whole batch")
    picture.arrow(140, 185, 100, 158)
    picture.arrow(340, 185, 380, 158)
    return picture


def _spatial() -> Picture:
    picture = Picture(
        "Spatial split",
        "Each device computes a part of the height of every image with the whole model. At each"
        " convolution they exchange the rows at the edge.",
    )
    for y, half, name in ((15, "upper half", "first device"), (135, "lower half", "second device")):
        picture.box(20, y, 120, 80, DATA, half, "of each image")
        picture.device(290, y, 170, 80, name)
        picture.box(305, y + 30, 140, 40, WEIGHTS, "whole model")
        picture.arrow(144, y + 40, 286, y + 40)
    picture.arrow(375, 98, 375, 132, both=True)
    picture.text(360, 120, "rows at the edge", "end")
    return picture


def _hybrid() -> Picture:
    picture = Picture(
        "A hybrid of data and stages",
        "Four devices in a mesh of two by two. Each row is a pipeline of two stages with half of"
        " the batch. Each column adds up its gradients.",
    )
    for row, y in enumerate((15, 135)):
        picture.box(10, y + 20, 90, 45, DATA, f"{('first', 'second')[row]} half", "of the batch")
        picture.arrow(102, y + 42, 136, y + 42)
        for column, x in enumerate((140, 340)):
            picture.device(x, y, 125, 80, f"data {row}, stage {column}")
            layers = ("layers 1 to 3", "layers 4 to 6")[column]
            picture.box(x + 12, y + 30, 101, 38, WEIGHTS, layers)
        picture.arrow(268, y + 42, 336, y + 42, both=True)
    for x in (202, 402):
        picture.arrow(x, 98, x, 132, both=True)
    picture.text(302, 120, "gradients added up")
    return picture


_PICTURES: dict[str, Callable[[], Picture]] = {
    "data": _data,
    "servers": _servers,
    "stages": _stages,
    "tensor": _tensor,
    "spatial": _spatial,
    "hybrid": _hybrid,
}
