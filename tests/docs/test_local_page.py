"""The example of docs/local.md, done as it is written there."""

import pathlib
import shlex
import subprocess
import sys

import pytest
from click import testing

from testing import pages, paths
from tfparallel.cli import app

_PAGE = paths.PAGES / "local.md"


@pytest.mark.usefixtures("processes")
def test_the_job_from_nothing_does_what_the_page_says(tmp_path: pathlib.Path) -> None:
    (tmp_path / "hello.yaml").write_text(pages.blocks(_PAGE, "yaml")[0])
    (tmp_path / "hello.py").write_text(pages.blocks(_PAGE, "python")[0])
    commands = pages.commands(pages.blocks(_PAGE, "console")[1])
    assert len(commands) == 3
    for command in commands:
        program, *arguments = shlex.split(command.line)
        assert program == "tfparallel"
        done = subprocess.run(
            (sys.executable, "-m", "tfparallel", *arguments),
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        shown = [line.rstrip() for line in done.stdout.splitlines()]
        assert set(command.shown) <= set(shown)
    assert (tmp_path / "three/logs/hello-worker-2.log").exists()


def test_the_wrong_job_of_the_page_is_refused_as_it_says(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, command = pages.commands(pages.blocks(_PAGE, "console")[2])
    assert file.line == "cat wrong.yaml"
    (tmp_path / "wrong.yaml").write_text("\n".join(file.shown))
    monkeypatch.chdir(tmp_path)
    result = testing.CliRunner().invoke(app.tfparallel, shlex.split(command.line)[1:])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == list(command.shown)


def test_the_examples_of_the_page_exist() -> None:
    for command in pages.commands(pages.blocks(_PAGE, "console")[0]):
        _, verb, file = shlex.split(command.line)
        assert verb == "run"
        assert (paths.ROOT / file).is_file()
