"""docs/cli.md lists every verb with its options, and what the command exits with."""

import click
import pytest

from testing import pages, paths
from tfparallel.cli import app, exits

PAGE = (paths.PAGES / "cli.md").read_text(encoding="utf-8")
VERBS = [(title, verb) for title, verbs in app.SECTIONS.items() for verb in verbs]


@pytest.mark.parametrize(("title", "name"), VERBS)
def test_every_verb_is_in_its_section_with_its_options(title: str, name: str) -> None:
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    text = section.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
    verb = app.tfparallel.get_command(click.Context(app.tfparallel), name)
    assert verb is not None
    assert f"tfparallel {name} [OPTIONS]" in text
    for parameter in verb.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[-1] in text
            first = " ".join((parameter.help or "").split())[:20]
            assert first.replace("<", "\\<") in text


def test_every_exit_code_is_listed() -> None:
    listed = [int(row[0]) for row in pages.rows("cli.md", "## Exit codes")]
    assert listed == [0, exits.FAILED, exits.BAD_INPUT, exits.SIGNAL + 2]
