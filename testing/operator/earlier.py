"""The operator of an earlier commit, as a cluster that is upgraded has it."""

import dataclasses
import datetime
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
from typing import Any

import pytest

from testing import paths

OLDEST = "a98b04654ee248e171b031bca417a7738c968d63"
"""The first commit whose operator starts with the requirements of today."""

AGE = datetime.timedelta(days=7)
PACKAGES = ("operator", "trainer")
DEFINITION = (
    "import json; from tfparallel_operator.api import schema;"
    "print(json.dumps([schema.__file__, schema.custom_resource_definition()]))"
)


@dataclasses.dataclass(frozen=True)
class Operator:
    """The packages of one commit in a folder."""

    commit: str
    folder: pathlib.Path

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which Python imports these packages and not those of today."""
        return {"PYTHONPATH": os.pathsep.join(str(self.folder / each) for each in PACKAGES)}

    def definition(self) -> dict[str, Any]:
        """The custom resource that this commit installs."""
        command = [sys.executable, "-c", DEFINITION]
        done = subprocess.run(
            command, env=os.environ | self.variables, capture_output=True, text=True, check=True
        )
        file, definition = json.loads(done.stdout)
        assert pathlib.Path(file).is_relative_to(self.folder)
        return dict(definition)


def unpack(folder: pathlib.Path) -> Operator:
    """The operator of the newest commit that is a week older than this one, else the oldest."""
    if not _succeeds("cat-file", "-e", f"{OLDEST}^{{commit}}"):
        pytest.skip("An upgrade needs the full history of git: run git fetch --unshallow.")
    commit = _a_week_ago() or OLDEST
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, *PACKAGES))) as archive:
        archive.extractall(folder, filter="data")
    return Operator(commit, folder)


def _a_week_ago() -> str:
    """The newest commit of the main line that is a week older than this one, if it starts."""
    now = datetime.datetime.fromisoformat(_git("log", "-1", "--format=%cI").decode().strip())
    before = f"--before={(now - AGE).isoformat()}"
    commit = _git("rev-list", "--first-parent", "--max-count=1", before, "HEAD").decode().strip()
    starts = commit and _succeeds("merge-base", "--is-ancestor", OLDEST, commit)
    return commit if starts else ""


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(paths.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


def _succeeds(*arguments: str) -> bool:
    try:
        _git(*arguments)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return False
    return True
