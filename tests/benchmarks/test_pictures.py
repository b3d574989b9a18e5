"""The pictures of the docs are those that the code draws today, each from what it was drawn from.

Those of plans are in `tests/client/test_plan.py`, and schematics in `make verify`.
"""

import functools
import pathlib
from collections.abc import Iterable, Mapping

import pytest

from benchmarks.pages import comparisons, plans, redraw, report_picture
from testing import pages, paths, pictures
from tfparallel.compare import verdict
from tfparallel.drawing import svg

pytestmark = pytest.mark.usefixtures("processes")  # matplotlib takes seconds

MEASURED = [
    *(
        redraw.image_of_comparison(example, name)
        for example in comparisons.EXAMPLES
        for name in comparisons.PICTURES
    ),
    redraw.IMAGES / "pipeline-split-deep-cnn.svg",
    report_picture.IMAGE,
]
MAX_BYTES = 150_000


@functools.cache
def drawn() -> Mapping[pathlib.Path, svg.Picture]:
    return redraw.draw()


@pytest.mark.parametrize("file", MEASURED, ids=lambda file: file.stem)
def test_a_picture_is_what_its_numbers_draw(file: pathlib.Path) -> None:
    """If it is not, `python -m benchmarks.pages.redraw` redraws it."""
    assert not pictures.differs(drawn()[file].document, file.read_text(encoding="utf-8"))


def test_the_picture_of_a_report_is_small_and_says_what_it_shows() -> None:
    picture = drawn()[report_picture.IMAGE]
    assert len(picture.document.encode()) <= MAX_BYTES
    assert "loss by step: training from" in picture.description
    assert "Attempts: 2." in picture.description
    assert str(paths.ROOT) not in picture.document


def test_no_picture_is_without_its_numbers() -> None:
    assert drawn().keys() == {*MEASURED}
    of_plans = {plans.image(folder) for folder in plans.DRAWN}
    schematics = {*redraw.IMAGES.glob("parallel-*.svg")}
    assert {*paths.PAGES.rglob("*.svg")} == {*MEASURED, *of_plans, *schematics}


def read(cell: str) -> tuple[float, float]:
    """Mean and deviation in a cell of the table."""
    mean, _, deviation = cell.replace(",", "").partition(" ± ")
    return float(mean), float(deviation)


def rounded(figures: Iterable[verdict.Figure]) -> list[object]:
    """Mean and deviation of figures, within the digits of the table."""
    return [pytest.approx((one.mean, one.deviation or 0.0), rel=5e-3) for one in figures]


@pytest.mark.parametrize("example", comparisons.EXAMPLES)
def test_pictures_and_table_of_a_comparison_have_the_same_numbers(example: str) -> None:
    part = pages.section(comparisons.PAGE.read_text(encoding="utf-8"), example)
    numbers = redraw.read_comparison(example)
    lines = [line.split("|")[1:-1] for line in part.splitlines() if line.startswith("|")]
    rows = {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}
    assert rows[""] == [*numbers.variants]
    assert [*map(read, rows["speed, examples/s"])] == rounded(numbers.speeds)
    ends = [verdict.Figure.of(curve.losses[-1]) for curve in numbers.curves]
    assert [*map(read, rows[f"final {numbers.loss}"])] == rounded(ends)
    for name, counts in numbers.staleness.items():
        mean = sum(value * count for value, count in counts.items()) / sum(counts.values())
        cell = rows["staleness, mean, updates"][numbers.variants.index(name)]
        assert read(cell)[0] == pytest.approx(mean, rel=5e-3)
