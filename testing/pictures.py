"""What the pictures of the client say and where: texts of SVG files, with the room they take.

The pictures of a report are in its page.
"""

import dataclasses
import html
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence

from matplotlib import font_manager, textpath

_SVG = "{http://www.w3.org/2000/svg}"
_NUMBERS = re.compile(r"-?[\d.]+")
_NUMBER = re.compile(r"(-?\d+\.\d+)")
_NAME = re.compile(r"\b[mp][0-9a-f]{10}\b")
"""Made of numbers to the last digit, in which processors differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A text, and the box around it in points; the vertical axis points down."""

    content: str
    size: float
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Text") -> bool:
        """Whether two texts cover each other."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def parse(document: str) -> ElementTree.Element:
    """Return the root of a picture that we have drawn ourselves."""
    return ElementTree.fromstring(document)  # noqa: S314


def find(page: str) -> Sequence[str]:
    """Return the pictures of a page of HTML."""
    return re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)


def words(page: str) -> str:
    """Return what a page of HTML says, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def title(document: str) -> str:
    """Return the title of a picture."""
    return _text(parse(document), "title")


def description(document: str) -> str:
    """Return what a picture tells people who do not see it."""
    return _text(parse(document), "desc")


def texts(document: str) -> Sequence[Text]:
    """Return the horizontal and vertical texts of a picture."""
    root = parse(document)
    return [_parse(element) for element in root.iter(f"{_SVG}text")]


def differs(document: str, other: str) -> bool:
    """Whether two pictures differ by more than processors differ in the last digits of numbers."""
    return any(
        abs(float(number) - float(two)) > 0.01 if index % 2 else number != two
        for index, (number, two) in enumerate(
            itertools.zip_longest(_parts(document), _parts(other), fillvalue="nan")
        )
    )


def _parts(document: str) -> Sequence[str]:
    """Return the numbers of a picture, and what is between them in turns."""
    return _NUMBER.split(_NAME.sub("name", document))


def faults(document: str) -> Iterator[str]:
    """Yield the texts that cover each other, are cut off, or are too small to read."""
    _, _, width, height = map(float, str(parse(document).get("viewBox")).split())
    drawn = texts(document)
    for index, text in enumerate(drawn):
        if text.size < 8:
            yield f"{text.content!r} has {text.size} points"
        if min(text.left, text.top) < -0.5 or text.right > width + 0.5 or text.bottom > height:
            yield f"{text.content!r} is cut off"
        for other in drawn[index + 1 :]:
            if text.meets(other):
                yield f"{text.content!r} covers {other.content!r}"


def _text(root: ElementTree.Element, tag: str) -> str:
    [element] = root.findall(f"{_SVG}{tag}")
    return element.text or ""


def _parse(element: ElementTree.Element) -> Text:
    style = element.get("style", "")
    size = float(_NUMBERS.findall(style.partition("font-size:")[2])[0])
    weight = "bold" if "bold" in style or "700" in style.partition("font-family")[0] else "normal"
    transform = element.get("transform", "")
    numbers = [float(number) for number in _NUMBERS.findall(transform)]
    translated = transform.startswith("translate")
    turned = any(number == -90.0 for number in numbers)
    left = numbers[0] if translated else float(element.get("x", "0"))
    base = numbers[1] if translated else float(element.get("y", "0"))
    content = "".join(element.itertext()).strip()
    width = _width(content, size, weight)
    anchor = style.partition("text-anchor:")[2].strip().split(";")[0]
    before = {"middle": width / 2, "end": width}.get(anchor, 0.0)
    above, below = 0.72 * size, 0.1 * size  # digits and capitals; few letters reach lower
    if turned:
        top = base + before - width
        return Text(content, size, left - above, top, left + below, top + width)
    start = left - before
    return Text(content, size, start, base - above, start + width, base + below)


def _width(content: str, size: float, weight: str) -> float:
    font = font_manager.FontProperties(family="DejaVu Sans", size=size, weight=weight)
    measured = textpath.TextToPath().get_text_width_height_descent(content, font, ismath=False)
    return float(measured[0])
