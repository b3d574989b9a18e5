"""Pictures of the client: colors that stay apart, alternative texts, and texts that can be read."""

import itertools
import pathlib
import re
from collections.abc import Sequence

import pytest

from testing import paths, pictures, report_runs
from tfparallel.drawing import palette, svg
from tfparallel.planning import plan_picture as planning
from tfparallel.report import chronology, timeline
from tfparallel_trainer.contract import plan

SCHEMATICS = {*paths.ROOT.glob("docs/images/parallel-*.svg")}  # which are drawn without Matplotlib
COMPOSED = paths.PAGES / "images/report-digits.svg"
"""Of pictures, each of which a page of the tests has by itself."""
IN_DOCS = sorted({*paths.ROOT.glob("docs/**/*.svg")} - SCHEMATICS - {COMPOSED})


@pytest.mark.parametrize(
    "colors",
    [palette.stages(4), palette.microbatches(4), palette.MEMORY, palette.VARIANTS],
)
def test_neighbors_of_a_set_differ_in_grey(colors: Sequence[str]) -> None:
    for color, other in itertools.pairwise(colors):
        assert palette.contrast(color, other) > 1.35


def test_the_update_differs_in_grey_from_what_it_touches() -> None:
    *_, state, activations, working = palette.MEMORY
    for neighbor in (state, activations, working, palette.MESSAGE, palette.microbatches(2)[-1]):
        assert palette.contrast(neighbor, palette.UPDATE) > 1.35


def test_activities_differ_in_grey_by_lightness_or_hatching() -> None:
    assert set(timeline.ACTIVITIES) == set(chronology.LoggedActivity)
    for activity, other in itertools.combinations(timeline.ACTIVITIES.values(), 2):
        assert activity.hatch != other.hatch or palette.contrast(activity.color, other.color) > 1.1


@pytest.mark.parametrize("count", [1, 2, 8, 32])
def test_texts_on_every_color_can_be_read(count: int) -> None:
    for color in (*palette.stages(count), *palette.microbatches(count)):
        assert palette.contrast(color, palette.ink(color)) >= 4.5
    assert len(set(palette.stages(count))) == count


def test_contrast_is_that_of_the_guidelines() -> None:
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_a_picture_says_what_it_shows_and_keeps_its_names_apart() -> None:
    def drawn(width: float) -> svg.Picture:
        with svg.canvas("a < b", width=width, height=2) as canvas:
            canvas.figure.subplots().plot([1, 2], [1, 10])
            canvas.description = "it rises & falls"
        return canvas.picture

    narrow, again, wide = drawn(svg.NARROW), drawn(svg.NARROW), drawn(svg.WIDE)
    assert narrow == again
    assert pictures.title(narrow.document) == "a < b"
    assert pictures.description(narrow.document) == "it rises & falls"
    root = pictures.parse(narrow.document)
    assert root.get("role") == "img"
    names = [set(re.findall(r'\bid="([^"]+)"', drawing.element)) for drawing in (narrow, wide)]
    assert not names[0] & names[1]
    assert set(str(root.get("aria-labelledby")).split()) <= names[0]
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', narrow.element))
    assert used <= names[0]
    assert "<style" not in narrow.element


@pytest.mark.parametrize("file", IN_DOCS, ids=lambda file: file.stem)
def test_pictures_in_the_docs_have_texts_for_everybody(file: pathlib.Path) -> None:
    document = file.read_text(encoding="utf-8")
    assert pictures.title(document)
    assert pictures.description(document)
    assert list(pictures.faults(document)) == []


@pytest.mark.parametrize("is_wide", [False, True])
def test_names_stand_at_the_ends_of_their_curves_and_apart(*, is_wide: bool) -> None:
    ends = {"low": 1.0, "close": 1.01, "high": 9.0}
    with svg.canvas("ends", width=svg.WIDE if is_wide else svg.NARROW, height=2.5) as canvas:
        axis = canvas.figure.subplots()
        for value in ends.values():
            axis.plot([0, 1], [0, value])
        named = [svg.End(name, value, palette.INK) for name, value in ends.items()]
        svg.name_ends(canvas, axis, named)
    assert list(pictures.faults(canvas.picture.document)) == []
    drawn = {text.content: text.top for text in pictures.texts(canvas.picture.document)}
    assert drawn["low"] > drawn["close"] > drawn["high"]
    assert drawn["close"] - drawn["high"] > 5 * (drawn["low"] - drawn["close"])


def test_names_of_curves_that_end_at_the_top_stay_next_to_the_axis() -> None:
    with svg.canvas("top", width=svg.NARROW, height=2.5) as canvas:
        axis = canvas.figure.subplots()
        named = [svg.End(f"curve {number}", 1 + number / 1e3, palette.INK) for number in range(3)]
        for end in named:
            axis.plot([0, 1], [0, end.value])
        axis.set_title("above")
        svg.name_ends(canvas, axis, named)
    assert list(pictures.faults(canvas.picture.document)) == []
    drawn = {text.content: text for text in pictures.texts(canvas.picture.document)}
    assert drawn["curve 2"].top > drawn["above"].bottom


def memory_of(peak: int) -> plan.Bytes:
    return plan.Bytes(
        parameters=10 * 2**20,
        gradients=20 * 2**20,
        slots=30 * 2**20,
        activations=40 * 2**20,
        working=5 * 2**20,
        peak=(60 + peak) * 2**20,
    )


@pytest.mark.parametrize("peak", [40, 45])
def test_a_device_holds_its_state_and_what_computes(peak: int) -> None:
    parts = [
        (part.name, part.begin >> 20, part.size >> 20) for part in planning.parts(memory_of(peak))
    ]
    names = ["parameters", "gradients", "optimizer state", "activations", "working memory"]
    assert parts == [*zip(names, (0, 10, 30, 60, 100), (10, 20, 30, 40, 5), strict=True)]


def test_the_update_is_shown_where_it_makes_the_peak() -> None:
    """It follows computing, so both begin where the state ends."""
    *state, update, activations, working = planning.parts(memory_of(46))
    assert [part.half for part in state] == [0, 0, 0]
    assert (update.name, update.size >> 20, update.half) == ("update", 46, 1)
    assert update.begin == activations.begin == state[-1].begin + state[-1].size
    assert [part.half for part in (activations, working)] == [-1, -1]


@pytest.mark.parametrize("width", [svg.NARROW, svg.WIDE])
def test_the_memory_of_a_plan_explains_its_peaks(width: float) -> None:
    planned = report_runs.of_a_split_model().stages
    assert planned is not None
    assert planned.planned is not None
    first, *others = planned.planned.stages
    large = first.model_copy(update={"holds": memory_of(46)})
    answer = planned.planned.model_copy(update={"stages": (large, *others)})
    with svg.canvas("Memory", width=width, height=planning.memory_height(answer)) as canvas:
        canvas.description = planning.memory(canvas.figure, answer)
    assert canvas.description == "Memory: peaks in MiB of 12: stage 0 106 in the update, stage 1 9."
    document = canvas.picture.document
    assert "update" in {text.content for text in pictures.texts(document)}
    assert document.count(f"fill: {palette.UPDATE}") == 2, "the bar, and its key"
    assert list(pictures.faults(document)) == []


def test_hatching_can_be_seen_on_its_color() -> None:
    for fill in timeline.ACTIVITIES.values():
        assert not fill.hatch or palette.contrast(fill.color, fill.edge) > 2


@pytest.mark.parametrize("decades", [1, 1.5, 2, 3, 5, 12])
def test_an_axis_over_decades_has_few_ticks(decades: float) -> None:
    with svg.canvas("ticks", width=svg.NARROW, height=2.5) as canvas:
        axis = canvas.figure.subplots()
        values = (2.0, 2.0 / 10**decades)
        axis.plot((0, 1), values)
        svg.scale(axis, values)
        low, high = axis.get_ylim()
        shown = [tick for tick in axis.get_yticks() if low <= tick <= high]
    assert 2 <= len(shown) <= 7
