"""The pages that people meet first, done as they are written."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from testing import pages, paths

_FIRST_MODEL = paths.PAGES / "get-started/first-model.md"
_LAPTOP = paths.PAGES / "get-started/laptop.md"


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
        done = subprocess.run(
            (sys.executable, "-m", "tfparallel", *arguments),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            check=True,
            capture_output=True,
            text=True,
        )
        assert {*command.shown} <= {*done.stdout.splitlines()}
    assert [*tmp_path.rglob("model.keras")]


def test_the_first_model_is_the_one_that_init_writes() -> None:
    templates = paths.ROOT / "client/tfparallel/templates"
    [model] = pages.blocks(_FIRST_MODEL, "python")
    assert model == (templates / "model.py.template").read_text(encoding="utf-8")
    [job] = pages.blocks(_FIRST_MODEL, "yaml")
    written = (templates / "synchronous.yaml").read_text(encoding="utf-8")
    assert job == written.replace("NAME", "flowers")


def test_the_page_on_the_laptop_has_the_commands_that_a_test_of_the_readme_runs() -> None:
    of_readme = {
        command.line
        for block in pages.blocks(pages.README, "console")
        for command in pages.commands(block)
    }
    blocks = pages.blocks(_LAPTOP, "console")
    lines = [command.line for block in blocks for command in pages.commands(block)]
    assert {*lines[:2]} <= of_readme
    assert f"\t$(BIN)/{lines[2]}\n" in (paths.ROOT / "Makefile").read_text(encoding="utf-8")
    fields = re.findall(r"--set (\S+)=", " ".join(lines))
    text = (paths.EXAMPLES / "digits/job.yaml").read_text(encoding="utf-8")
    assert [field.rpartition(".")[2] in text for field in fields] == [True]
