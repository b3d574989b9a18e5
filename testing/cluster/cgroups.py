"""The control groups of one cluster's pods: a branch of their own, so two clusters never mix.

Version 1 has one tree per controller, version 2 has a single one. Version 2 is written from its
documentation; the machines this was developed on have version 1.
"""

import functools
import hashlib
from pathlib import Path

from testing import waiting
from testing.cluster import console

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset", "memory", "hugetlb", "pids")
INHERITED = ("cpuset.cpus", "cpuset.mems")
EMPTY_LIMIT_SECONDS = 60.0


def branch(directory: Path) -> str:
    """The name of the cluster's branch; the folder is what no two clusters share."""
    return "tfparallel-" + hashlib.sha256(str(directory).encode()).hexdigest()[:12]


def create(name: str) -> None:
    """Make the branch in every tree."""
    if _single_tree():
        present = (ROOT / "cgroup.controllers").read_text(encoding="ascii").split()
        enabled = " ".join(f"+{controller}" for controller in CONTROLLERS if controller in present)
        (ROOT / "cgroup.subtree_control").write_text(enabled, encoding="ascii")
    for tree in _trees():
        (tree / name).mkdir(exist_ok=True)
        for file in INHERITED:
            if (tree / file).exists():
                value = (tree / file).read_text(encoding="ascii")
                (tree / name / file).write_text(value, encoding="ascii")


def remove(name: str) -> None:
    """Remove the branch from every tree once its last process has gone."""
    for tree in _trees():
        if not (tree / name).exists():
            continue
        folders = [path for path in (tree / name).rglob("*") if path.is_dir()]
        for folder in [*reversed(folders), tree / name]:
            refusal = functools.partial(_refusal, folder)
            try:
                waiting.until(
                    refusal,
                    "an empty folder",
                    EMPTY_LIMIT_SECONDS,
                    when=lambda refusal_error: not refusal_error,
                )
            except waiting.TimedOutError as error:
                raise console.ClusterError(f"{folder} cannot be removed: {error}") from error


def _refusal(folder: Path) -> OSError | None:
    """Remove a folder; returns why it cannot be removed now."""
    try:
        folder.rmdir()
    except OSError as error:
        return error
    return None


def _single_tree() -> bool:
    return (ROOT / "cgroup.controllers").exists()


def _trees() -> list[Path]:
    if _single_tree():
        return [ROOT]
    return [path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink()]
