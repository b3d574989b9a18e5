"""Every command of the pages on the command is one that the command or a test knows."""

import pathlib
import shlex

import click
import pytest

from testing import pages, paths
from tfparallel import submission
from tfparallel.cli import app

PAGES = [paths.PAGES / name for name in ("install-command.md", "planner.md", "submit.md")]
SHOWN = [
    command.line
    for page in PAGES
    for block in pages.blocks(page, "console")
    for command in pages.commands(block)
]
OURS = [line for line in SHOWN if line.removeprefix("kubectl ").startswith("tfparallel ")]


@pytest.mark.parametrize("line", OURS)
def test_a_command_is_one_that_the_program_parses(line: str) -> None:
    _, *arguments = shlex.split(line.removeprefix("kubectl "))
    if arguments == ["--help"]:
        return
    context = click.Context(app.tfparallel)
    verb = app.tfparallel.get_command(context, arguments[0])
    assert verb is not None
    parsed = verb.make_context(arguments[0], arguments[1:], parent=context)
    for value in parsed.params.values():
        assert not isinstance(value, pathlib.Path) or (paths.ROOT / value).is_file()


def test_the_wheels_are_built_and_installed_as_the_test_of_the_wheels_does() -> None:
    others = [line for line in SHOWN if line not in OURS]
    test = (paths.ROOT / "tests/client/test_installation.py").read_text(encoding="utf-8")
    wheel, *installs = [line for line in others if " wheel " in line or " install " in line]
    for word in ("wheel", "--no-deps"):
        assert word in shlex.split(wheel)
        assert f'"{word}"' in test
    folders = [pathlib.PurePath(word).name for word in shlex.split(wheel) if word.startswith("./")]
    assert folders == ["trainer", "operator", "client"]
    assert all("--find-links" in line and line.endswith(" tfparallel") for line in installs)


def test_the_submission_of_the_page_has_the_files_and_the_claim() -> None:
    read = submission.read(paths.EXAMPLES / "digits/job.yaml", claim_size="1Gi")
    [claim] = read.companions
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    assert read.sources
