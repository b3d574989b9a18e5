"""docs/how-to/troubleshooting.md shows what `tfparallel why` prints."""

import itertools
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


def test_the_sentences_of_the_command_are_those_of_its_code() -> None:
    folders = ("client/tfparallel", "operator/tfparallel_operator/api_server")
    files = itertools.chain.from_iterable((paths.ROOT / folder).rglob("*.py") for folder in folders)
    code = " ".join(file.read_text(encoding="utf-8") for file in files)
    joined = re.sub(r'"\s+f?"', "", code)
    rows = pages.rows("how-to/troubleshooting.md", "## The command ends with an error")
    assert rows
    for sentence, *_ in rows:
        beginning = sentence.partition("`")[0]
        assert beginning in joined, beginning


def test_the_page_lists_every_kind_and_its_links_lead_to_headings() -> None:
    rows = pages.rows("how-to/troubleshooting.md", "`kubectl describe tfpj digits` shows it too.")
    named = {kind for _, kinds in rows for kind in re.findall(r"\w+", kinds)}
    assert named == {kind.value for kind in findings.FindingKind}
    headings = re.findall(r"^## (.*)$", _PAGE.read_text(), re.M)
    links = [re.findall(r"#([\w-]+)\)", link)[0] for link, _ in rows]
    assert links == [heading.lower().replace(" ", "-") for heading in headings]
