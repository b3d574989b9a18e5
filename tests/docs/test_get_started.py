"""The pages that people meet first, done as they are written."""

import pathlib
import shlex
import subprocess

import pytest

from testing import invocation, pages, paths

_FIRST_MODEL = paths.PAGES / "get-started/first-model.md"


@pytest.mark.usefixtures("processes")
def test_the_first_model_trains_and_is_resumed_as_the_page_says(tmp_path: pathlib.Path) -> None:
    blocks = pages.blocks(_FIRST_MODEL, "console")
    shown = [command for block in blocks for command in pages.commands(block)]
    here = [command for command in shown if "submit" not in command.line]
    verbs = [shlex.split(command.line)[1] for command in here]
    assert verbs == ["init", "validate", "run", "run", "get", "get"]
    for command in here[:-1]:  # the last one asks a cluster, as `submit` before it
        program, *arguments = shlex.split(command.line)
        assert program == "tfparallel"
        done = invocation.run(*arguments, folder=tmp_path, check=True, stdin=subprocess.DEVNULL)
        assert {*command.shown} <= {*done.stdout.splitlines()}
    assert [*tmp_path.rglob("model.keras")]


def test_the_first_model_is_the_one_that_init_writes() -> None:
    templates = paths.ROOT / "client/tfparallel/templates"
    [model] = pages.blocks(_FIRST_MODEL, "python")
    assert model == (templates / "model.py.template").read_text(encoding="utf-8")
    [job] = pages.blocks(_FIRST_MODEL, "yaml")
    written = (templates / "synchronous.yaml").read_text(encoding="utf-8")
    assert job == written.replace("NAME", "flowers")
