"""The page on tutorials shows the lines of each script that change."""

import re

import pytest

from testing import paths
from testing.trainer import cases_tutorials as cases

PAGE = (paths.PAGES / "how-to/tutorials.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.*)\n\n`.*`:\n\n```diff\n((?:[-+].*\n)*)```$", PAGE, re.M))


@pytest.mark.parametrize("tutorial", cases.ALL, ids=lambda tutorial: tutorial.name)
def test_the_lines_that_change_are_those_of_the_script(tutorial: cases.Tutorial) -> None:
    assert SECTIONS.get(tutorial.title, "").splitlines() == tutorial.difference
