"""The operator and the chart of an earlier commit, as a cluster that is upgraded has them."""

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

OLDEST_CHART = "e28aceaf038b15d40143be6b76a12bf5a04f108a"
"""A commit with a chart whose values and objects are those before the first release."""

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
        return {"PYTHONPATH": os.pathsep.join(str(self.folder / package) for package in PACKAGES)}

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
    return Operator(_unpack(folder, OLDEST, *PACKAGES), folder)


def unpack_commit(folder: pathlib.Path, commit: str) -> Operator | None:
    """The operator of this commit; None where the history of git does not reach back to it."""
    if not _succeeds("cat-file", "-e", f"{commit}^{{commit}}"):
        return None
    _extract(folder, commit, *PACKAGES)
    return Operator(commit, folder)


def unpack_chart(folder: pathlib.Path) -> pathlib.Path:
    """The chart of the newest commit that is a week older than this one, else the oldest."""
    _unpack(folder, OLDEST_CHART, "charts")
    return folder / "charts/tfparallel-operator"


def _unpack(folder: pathlib.Path, oldest: str, *packages: str) -> str:
    """Unpack folders of the newest commit that is a week old, else the oldest; return it."""
    if not _succeeds("cat-file", "-e", f"{oldest}^{{commit}}"):
        pytest.skip("An upgrade needs the full history of git: run git fetch --unshallow.")
    commit = _a_week_ago(oldest) or oldest
    _extract(folder, commit, *packages)
    return commit


def _extract(folder: pathlib.Path, commit: str, *packages: str) -> None:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit, *packages))) as archive:
        archive.extractall(folder, filter="data")


def _a_week_ago(oldest: str) -> str:
    """The newest commit of the main line that is a week older than this one, if it has oldest."""
    now = datetime.datetime.fromisoformat(_git("log", "-1", "--format=%cI").decode().strip())
    before = f"--before={(now - AGE).isoformat()}"
    commit = _git("rev-list", "--first-parent", "--max-count=1", before, "HEAD").decode().strip()
    is_later = commit and _succeeds("merge-base", "--is-ancestor", oldest, commit)
    return commit if is_later else ""


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(paths.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


def _succeeds(*arguments: str) -> bool:
    try:
        _git(*arguments)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return False
    return True
