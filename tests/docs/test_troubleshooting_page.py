"""docs/how-to/troubleshooting.md shows what `tfparallel why` prints."""

import re

import pytest

from testing import pages, paths
from testing.operator import symptoms
from tfparallel.cli import why
from tfparallel.diagnosis import findings, rules

_PAGE = paths.PAGES / "how-to/troubleshooting.md"
_SHOWN = dict(
    re.findall(r"^<!-- why: (.*?) -->\n```console\n(.*?)```$", _PAGE.read_text(), re.M | re.S)
)


def test_the_page_shows_every_symptom() -> None:
    assert {*_SHOWN} == {*symptoms.SYMPTOMS}


@pytest.mark.parametrize("symptom", symptoms.SYMPTOMS)
def test_the_page_shows_what_why_prints(symptom: str) -> None:
    lines = why.render(rules.diagnose(symptoms.SYMPTOMS[symptom]()))
    assert _SHOWN[symptom].splitlines() == ["$ tfparallel why digits", *lines]


def test_the_page_lists_every_kind_and_its_links_lead_to_headings() -> None:
    rows = pages.rows("how-to/troubleshooting.md", "`kubectl describe tfpj digits` shows it too.")
    named = {kind for _, kinds in rows for kind in re.findall(r"\w+", kinds)}
    assert named == {kind.value for kind in findings.FindingKind}
    headings = re.findall(r"^## (.*)$", _PAGE.read_text(), re.M)
    links = [re.findall(r"#([\w-]+)\)", link)[0] for link, _ in rows]
    assert links == [heading.lower().replace(" ", "-") for heading in headings]
