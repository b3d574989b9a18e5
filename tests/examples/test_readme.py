"""The README's path on this machine, word by word, in a fresh clone."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing import pages, paths

LIMIT_SECONDS = 180.0
"""From nothing to a trained model: a ceiling, not a measure."""

BLOCKS = [
    pages.find_commands(pages.README, first) for first in ("make demo", "source .venv/bin/activate")
]
NO_REGISTRY = ("No matching distribution", "Temporary failure", "Connection refused")


@pytest.fixture
def clone(processes: None, tmp_path: Path) -> Path:
    """The last commit of this repository, as `git clone` brings it."""
    if not (paths.ROOT / ".git").exists():
        pytest.skip("This folder is no repository of git.")
    folder = tmp_path / "clone"
    command = ["git", "clone", "--quiet", str(paths.ROOT), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.mark.long
@pytest.mark.serial
def test_a_fresh_clone_trains_by_the_commands_of_the_readme(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = []
    for block in BLOCKS:
        begin = time.monotonic()
        _follow(block, clone)
        seconds.append(time.monotonic() - begin)
    with capsys.disabled():
        print(f"\nREADME, on this machine: {seconds[0]:.0f} s of at most {LIMIT_SECONDS:.0f} s")


def _follow(block: Sequence[pages.Command], folder: Path) -> None:
    """Run the commands of a block in one shell; they train the example."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(command.line for command in block)],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if any(words in done.stderr for words in NO_REGISTRY):
        pytest.skip(f"no package registry is in reach: {done.stderr[-300:]}")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "Succeeded: digits\n" in done.stdout
