"""The page of numerical truth is whole and within its limits, and would not pass otherwise."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.pages import truth, truth_servers, truth_split
from testing.trainer import cases, cases_servers


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
    outcomes = truth_servers.parse(truth.part(truth_servers.HEADING))
    assert max(outcome.staleness for outcome in outcomes.values()) > 0


def test_the_text_of_the_page_is_what_its_writers_write() -> None:
    for writer in (truth, truth_servers, truth_split):
        text = truth.part(writer.HEADING)
        assert writer.section(writer.parse(text)).strip() == text.strip()
    text = truth.part(truth_split.PROCESSES_HEADING)
    written = truth_split.section_of_processes(truth_split.parse_processes(text))
    assert written.strip() == text.strip()
