"""docs/reference/cli.md lists every verb with its options, and what the command exits with."""

import click
import pytest

from testing import pages, paths
from tfparallel.cli import app, exits

PAGE = (paths.PAGES / "reference/cli.md").read_text(encoding="utf-8")
CONTEXT = click.Context(app.tfparallel)
VERBS = [(title, verb) for title, verbs in app.SECTIONS.items() for verb in verbs]


@pytest.mark.parametrize(("title", "name"), VERBS)
def test_every_verb_is_in_its_section_with_its_options(title: str, name: str) -> None:
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    text = section.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    verb = app.tfparallel.get_command(CONTEXT, name)
    assert verb is not None
    assert f"tfparallel {name} [OPTIONS]" in text
    for parameter in verb.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[-1] in text
            first = " ".join((parameter.help or "").split())[:20]
            assert first.replace("<", "&lt;") in text


@pytest.mark.parametrize(
    ("verb", "noun"),
    [
        (verb, noun)
        for _, verb in VERBS
        if isinstance(group := app.tfparallel.get_command(CONTEXT, verb), click.Group)
        for noun in group.commands
    ],
)
def test_every_noun_is_in_the_section_of_its_verb(verb: str, noun: str) -> None:
    section = PAGE.partition(f"\n### {verb}\n")[2].partition("\n### ")[0]
    text = section.partition(f"\n#### {noun}\n")[2].partition("\n#### ")[0]
    assert f"tfparallel {verb} {noun} [OPTIONS]" in text


def test_every_exit_code_is_listed() -> None:
    listed = [int(row[0]) for row in pages.rows("reference/cli.md", "## Exit codes")]
    assert listed == [0, exits.FAILED, exits.BAD_INPUT, exits.SIGNAL + 2]
