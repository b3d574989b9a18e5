"""The page on tutorials lists every tutorial with the lines that change."""

import re

import pytest

from testing import paths
from testing.trainer import cases_tutorials as cases

PAGE = (paths.PAGES / "how-to/tutorials.md").read_text(encoding="utf-8")
TABLE = dict(re.findall(r"^\| \[(.+?)\]\(.*?\) \|.*\| (\S.*) \|$", PAGE, re.M))
SECTIONS = dict(re.findall(r"^### (.*)\n\n`.*`:\n\n```diff\n((?:[-+].*\n)*)```$", PAGE, re.M))


def test_every_tutorial_has_a_row() -> None:
    rows = [f"| [{one.title}]({one.address}) | `{one.strategy}` | none | " for one in cases.ALL]
    assert all(row in PAGE for row in rows)
    assert [*TABLE] == [one.title for one in cases.ALL]


@pytest.mark.parametrize("tutorial", cases.ALL, ids=lambda one: one.name)
def test_the_lines_that_change_are_those_of_the_script(tutorial: cases.Tutorial) -> None:
    difference = tutorial.difference
    assert SECTIONS.get(tutorial.title, "").splitlines() == difference
    signs = [line[0] for line in difference]
    counts = f"-{signs.count('-')} +{signs.count('+')}" if difference else "none"
    assert TABLE[tutorial.title] == counts
