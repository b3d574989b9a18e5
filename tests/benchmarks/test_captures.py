"""The page of captures: what the maker writes, and what the page holds."""

import os
import pathlib
import re

import pytest

from benchmarks.pages import captures
from testing import pages, screens
from tfparallel_operator.api import load, yaml_documents


def test_the_variants_of_the_example_are_what_the_page_says(tmp_path: pathlib.Path) -> None:
    captures.Desk(tmp_path, os.environ)

    def parse(variant: str) -> str:
        text = (tmp_path / variant / "job.yaml").read_text()
        return load.parse_job(yaml_documents.parse(text, variant)[0]).metadata.name

    assert (parse("large"), parse("broken")) == ("large", "broken")
    with pytest.raises(load.SpecError, match=r"spec\.trainer\.epochs"):
        parse("wrong")


def test_of_a_long_output_the_middle_is_left_out() -> None:
    many = [str(number) for number in range(captures.HEAD + captures.TAIL + 2)]
    [command] = pages.commands(captures.Capture("seq", many).block())
    lines = (*many[: captures.HEAD], captures.LEFT_OUT, *many[-captures.TAIL :])
    assert command.shown[: len(lines)] == lines
    few = many[:-1]
    [command] = pages.commands(captures.Capture("seq", few).block())
    assert list(command.shown[: len(few)]) == few


def test_the_page_has_the_captures_of_80_columns() -> None:
    page = captures.PAGE.read_text(encoding="utf-8")
    names = [name for name in re.findall(r"^<!-- (\S+) -->$", page, re.M) if name != "end"]
    assert sorted(names) == sorted([*captures.MACHINE, *captures.CLUSTER])
    for name in captures.MACHINE:
        assert "$ tfparallel " in pages.section(page, name)
    for block in pages.blocks(captures.PAGE, "console"):
        for command in pages.commands(block):
            assert max(map(len, command.shown)) <= screens.COLUMNS
