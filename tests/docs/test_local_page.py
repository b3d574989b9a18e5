"""The example of docs/how-to/local.md, done as it is written there."""

import contextlib
import pathlib
import shlex

import pytest

from testing import invocation, pages, paths
from testing.operator import local_jobs as jobs

_PAGE = paths.PAGES / "how-to/local.md"


@pytest.mark.usefixtures("processes")
def test_the_job_from_nothing_does_what_the_page_says(tmp_path: pathlib.Path) -> None:
    (tmp_path / "hello.yaml").write_text(pages.blocks(_PAGE, "yaml")[0])
    (tmp_path / "hello.py").write_text(pages.blocks(_PAGE, "python")[0])
    commands = pages.commands(pages.blocks(_PAGE, "console")[1])
    assert len(commands) == 3
    for command in commands:
        program, *arguments = shlex.split(command.line)
        assert program == "tfparallel"
        done = invocation.run(*arguments, folder=tmp_path, check=True)
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
    result = invocation.invoke(shlex.split(command.line)[1:])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == list(command.shown)


def test_a_model_that_cannot_be_imported_is_refused_as_the_page_says(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "model.py").write_text(pages.blocks(_PAGE, "python")[1])
    jobs.write(tmp_path, jobs.job({"Chief": {}}, trainer={"epochs": 1}))
    [command] = pages.commands(pages.blocks(_PAGE, "console")[3])
    _, *arguments = shlex.split(command.line)
    with contextlib.chdir(tmp_path):
        result = invocation.invoke(arguments)
    assert result.exit_code == 2
    assert tuple(result.stderr.splitlines()) == command.shown


@pytest.mark.usefixtures("processes")
def test_variables_are_passed_as_the_page_says(tmp_path: pathlib.Path) -> None:
    (tmp_path / "greet.yaml").write_text(pages.blocks(_PAGE, "yaml")[1])
    (tmp_path / "names.env").write_text(pages.blocks(_PAGE, "text")[0])
    [command] = pages.commands(pages.blocks(_PAGE, "console")[4])
    _, *arguments = shlex.split(command.line)
    done = invocation.run(*arguments, folder=tmp_path, check=True)
    assert set(command.shown) <= set(done.stdout.splitlines())
