"""The example of docs/local.md, done as it is written there."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

_PAGE = (pathlib.Path(__file__).parents[2] / "docs/local.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def _blocks(kind: str) -> list[str]:
    return [content for found, content in _BLOCK.findall(_PAGE) if found == kind]


def _commands(console: str) -> list[tuple[list[str], list[str]]]:
    """Each command of a console block, and the lines that it must show."""
    commands: list[tuple[list[str], list[str]]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            commands.append((shlex.split(line[2:]), []))
        else:
            commands[-1][1].append(line)
    return commands


@pytest.mark.usefixtures("processes")
def test_the_job_from_nothing_does_what_the_page_says(tmp_path: pathlib.Path) -> None:
    (tmp_path / "hello.yaml").write_text(_blocks("yaml")[0])
    (tmp_path / "hello.py").write_text(_blocks("python")[0])
    commands = _commands(_blocks("console")[1])
    assert len(commands) == 3
    for (program, *arguments), expected in commands:
        assert program == "tfparallel"
        done = subprocess.run(
            (sys.executable, "-m", "tfparallel_operator.cli", *arguments),
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        shown = [line.rstrip() for line in done.stdout.splitlines()]
        assert set(expected) <= set(shown)
    assert (tmp_path / "three/logs/hello-worker-2.log").exists()


def test_the_examples_of_the_page_exist() -> None:
    root = pathlib.Path(__file__).parents[2]
    for (_, command, file), _ in _commands(_blocks("console")[0]):
        assert command == "run"
        assert (root / file).is_file()
