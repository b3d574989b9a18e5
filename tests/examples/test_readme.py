"""The README's path on this machine, word by word, in a fresh clone."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing import invocation, pages, paths

LIMIT_SECONDS = 180.0
"""From nothing to a trained model: a ceiling, not a measure."""

BLOCKS = {
    job: pages.find_commands(pages.README, first)
    for first, job in (("make demo", "digits"), ("source .venv/bin/activate", "flowers"))
}
"""The blocks of commands, by the job that each trains."""
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
    for job, block in BLOCKS.items():
        begin = time.monotonic()
        printed = _follow(block, clone)
        assert f"Succeeded: {job}\n" in printed
        seconds.append(time.monotonic() - begin)
    [report] = (clone / "runs/flowers").rglob("report.html")
    assert printed.endswith(f"{report.relative_to(clone)}\n")
    with capsys.disabled():
        print(f"\nREADME, on this machine: {seconds[0]:.0f} s of at most {LIMIT_SECONDS:.0f} s")


def _follow(block: Sequence[pages.PageCommand], folder: Path) -> str:
    """Run the commands of a block in one shell; return what they print."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = invocation.execute(
        "bash",
        "-e",
        "-c",
        "\n".join(command.line for command in block),
        folder=folder,
        env=variables,
        timeout=LIMIT_SECONDS,
    )
    if any(fragment in done.stderr for fragment in NO_REGISTRY):
        pytest.skip(f"no package registry is in reach: {done.stderr[-300:]}")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout
