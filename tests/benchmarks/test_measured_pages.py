"""The measured pages are whole and within their limits, and would not pass otherwise."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.pages import captures, models, truth, truth_random, truth_servers, truth_split
from testing import pages, screens
from testing.trainer import cases, cases_models, cases_servers
from testing.trainer.random_models import drawing, outcomes


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the page, and what reads and judges it."""

    heading: str
    parse: Callable[[str], Any]
    faults: Callable[[Any], Sequence[str]]
    figure: str
    """A pattern of a figure, whose first digit counts."""


PARTS = {
    "synchronous": Part(truth.HEADING, truth.parse, cases.faults, r"\d(?=e-\d+ /)"),
    "one worker": Part(
        truth_servers.HEADING, truth_servers.parse, cases_servers.faults, r"\d(?=e[-+]\d+ /)"
    ),
    "two workers": Part(
        truth_servers.HEADING, truth_servers.parse, cases_servers.faults, r"\d(?=\.\d+ ± \S+ \| 0)"
    ),
    "split": Part(truth_split.HEADING, truth_split.parse, cases.faults, r"\d(?=e-\d+ /)"),
    "split, in processes": Part(
        truth_split.PROCESSES_HEADING, truth_split.parse_processes, cases.faults, r"\d(?=e-\d+ /)"
    ),
    "losses": Part(
        truth_split.LOSSES_HEADING, truth_split.parse_losses, truth_split.loss_faults, r"\d(?=\.\d)"
    ),
}
parts = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)


@parts
def test_the_page_is_within_its_limits(part: Part) -> None:
    assert part.faults(part.parse(truth.part(part.heading))) == []


@parts
def test_a_row_that_lacks_is_missed(part: Part) -> None:
    lines = truth.part(part.heading).splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("| ")][1:]
    assert len(rows) > 5
    for number in rows:
        with pytest.raises(ValueError, match="0 rows start with"):
            part.parse("\n".join(lines[:number] + lines[number + 1 :]))


@parts
def test_each_figure_beyond_its_limit_is_named(part: Part) -> None:
    text = truth.part(part.heading)
    figures = list(re.finditer(part.figure, text))
    assert len(figures) > 5
    for figure in figures:
        wrong = f"{text[: figure.start()]}987654321{text[figure.end() :]}"
        assert len(part.faults(part.parse(wrong))) == 1


def test_some_update_of_the_asynchronous_runs_is_stale() -> None:
    by_layout = truth_servers.parse(truth.part(truth_servers.HEADING))
    assert max(outcome.staleness for outcome in by_layout.values()) > 0


def test_the_page_has_the_captures_of_80_columns() -> None:
    page = captures.PAGE.read_text(encoding="utf-8")
    names = [name for name in re.findall(r"^<!-- (\S+) -->$", page, re.M) if name != "end"]
    assert sorted(names) == sorted([*captures.MACHINE, *captures.CLUSTER])
    for name in captures.MACHINE:
        assert "$ tfparallel " in pages.section(page, name)
    for block in pages.blocks(captures.PAGE, "console"):
        for command in pages.commands(block):
            assert max(map(len, command.shown)) <= screens.COLUMNS


TEXT = models.PAGE.read_text(encoding="utf-8")
OUTCOMES = models.parse(TEXT)


def test_each_model_has_its_row_with_all_its_layouts() -> None:
    files = {path.stem for path in cases_models.FOLDER.glob("*.py")}
    assert files == set(cases_models.MODELS)
    assert {name: list(row) for name, row in OUTCOMES.items()} == {
        name: cases_models.layouts(name) for name in cases_models.MODELS
    }


def test_each_model_is_equal_to_one_process_or_refused() -> None:
    for name, row in OUTCOMES.items():
        for layout, outcome in row.items():
            if outcome.difference is None:
                assert outcome.refusal, (name, layout)
            else:
                assert outcome.difference <= cases_models.limit(name), (name, layout)


def outcome(layout: int, ending: outcomes.Ending, difference: float = 0.0) -> outcomes.Outcome:
    return outcomes.Outcome(0, layout, "Mirrored on 1x2", ending, "", difference)


def test_a_campaign_is_counted_by_strategy(tmp_path: pathlib.Path) -> None:
    state = outcomes.CampaignFile.open(tmp_path / "state.jsonl", 5)
    state.add(
        [
            outcome(0, outcomes.Ending.EQUAL, 2e-16),
            outcome(1, outcomes.Ending.REFUSED),
            outcome(2, outcomes.Ending.HUNG),
            outcome(3, outcomes.Ending.INVALID),
        ]
    )
    campaign = truth_random.summarise(state)
    assert campaign == truth_random.Campaign(
        seed=5,
        models=1,
        invalid=1,
        rows=(truth_random.Row("Mirrored", 1, 2e-16, 0, 1, 1),),
    )
    assert truth_random.parse(truth_random.section(campaign)) == campaign
    assert truth_random.faults(campaign) == []


def test_each_layout_has_a_row_that_says_its_axes() -> None:
    layouts = [layout for layout, _ in drawing.LAYOUTS]
    names = {str(layout): truth_random.strategy(str(layout)) for layout in layouts}
    assert names["ModelSplit stage 2, microbatches 2 on 1x2"] == "ModelSplit, stages"
    assert names["ModelSplit stage 2, tensor 2, microbatches 2 on 1x4"].endswith("several axes")
    assert names["ModelSplit tensor 2 on 2x1"] == "ModelSplit, 2 processes"
    assert names["MultiWorkerMirrored on 1x1"] == "one process"
    assert len(set(names.values())) == 10


def test_a_row_that_lacks_is_missed_and_a_difference_is_named() -> None:
    text = truth.part(truth_random.HEADING)
    lines = text.splitlines()
    for number in [index for index, line in enumerate(lines) if line.startswith("| ")][1:]:
        with pytest.raises(ValueError, match="rows do not have"):
            truth_random.parse("\n".join(lines[:number] + lines[number + 1 :]))
    campaign = truth_random.parse(text)
    wrong = dataclasses.replace(campaign.rows[0], difference=1e-3)
    changed = dataclasses.replace(campaign, rows=(wrong, *campaign.rows[1:]))
    assert len(truth_random.faults(changed)) == 1
