"""Every command of the pages on the command is one that the command or a test knows."""

import pathlib
import re
import shlex

import click
import pytest
import yaml

from images import targets
from testing import pages, paths
from tfparallel.cli import app
from tfparallel_operator.api import load

KIND = paths.PAGES / "get-started/kind.md"


def _lines(page: pathlib.Path) -> list[str]:
    blocks = pages.blocks(page, "console")
    return [command.line for block in blocks for command in pages.commands(block)]


def _is_ours(line: str) -> bool:
    return line.removeprefix("kubectl ").startswith("tfparallel ")


@pytest.mark.parametrize("page", pages.ALL, ids=lambda page: str(page.relative_to(paths.ROOT)))
def test_a_command_is_one_that_the_program_parses(page: pathlib.Path) -> None:
    for line in filter(_is_ours, _lines(page)):
        _, *arguments = shlex.split(re.split(r" [>|#] ", line.removeprefix("kubectl "))[0])
        if arguments == ["--help"]:
            continue
        context = click.Context(app.tfparallel)
        verb = app.tfparallel.get_command(context, arguments[0])
        assert verb is not None
        parsed = verb.make_context(arguments[0], arguments[1:], parent=context)
        for value in parsed.params.values():
            is_example = isinstance(value, pathlib.Path) and value.parts[0] == "examples"
            assert not is_example or (paths.ROOT / value).exists(), line


@pytest.mark.parametrize("page", [pages.README, KIND], ids=lambda page: page.name)
def test_a_page_loads_the_images_that_the_chart_runs(page: pathlib.Path) -> None:
    lines = [command.line for command in pages.find_commands(page, "kind create")]
    images = " ".join(image.reference for image in targets.TARGETS.values())
    assert lines == ["kind create cluster", "make images", f"kind load docker-image {images}"]


@pytest.mark.parametrize("name", ["how-to/secrets.md", "how-to/buckets.md"])
def test_the_job_of_a_page_takes_what_the_page_adds_to_its_trainer(name: str) -> None:
    job, *additions = map(yaml.safe_load, pages.blocks(paths.PAGES / name, "yaml"))
    assert additions
    for addition in additions:
        job["spec"]["trainer"] |= addition["trainer"]
    assert load.parse_job(job).spec.trainer is not None


def test_every_page_is_reached_from_the_readme() -> None:
    reached: set[pathlib.Path] = set()
    following = [pages.README]
    while following:
        page = following.pop()
        reached.add(page)
        links = re.findall(r"\]\((?!https:)([^)#]+\.md)", page.read_text(encoding="utf-8"))
        targets_of_links = {(page.parent / link).resolve() for link in links}
        following += targets_of_links - reached
    assert {*pages.ALL} <= reached | {paths.ROOT / "CHANGELOG.md"}
