"""Runs pytest in a process of its own, and reads what it reports."""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Sequence

from testing.pytest_plugin import times
from testing.pytest_plugin.tiers import Tier

WORKERS = ("--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")
"""Many tests wait for a cluster, and leave a core to those that train."""

OK, FAILED, NO_TESTS = 0, 1, 5
"""Exit codes of pytest."""

_OF_MAKE = frozenset({"MAKEFLAGS", "MAKELEVEL", "MFLAGS"})
"""Variables by which a make that a test starts takes itself for a part of `make test`."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One run of pytest that has ended."""

    code: int
    report: times.Report

    @property
    def broke(self) -> bool:
        """Whether it ended otherwise than by running its tests."""
        return self.code not in (OK, FAILED, NO_TESTS) or bool(self.report.errors)


def select(tiers: Iterable[Tier]) -> str:
    """The option that selects tiers."""
    return f"--tier={','.join(tier.title for tier in sorted(tiers))}"


def run(name: str, arguments: Sequence[str], root: pathlib.Path) -> Part:
    """Run pytest in a repository; its reports are called `name`."""
    command = [sys.executable, "-m", "pytest", f"--report={name}", *arguments]
    file = root / times.FOLDER / f"{name}.json"
    file.unlink(missing_ok=True)
    variables = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    with subprocess.Popen(command, cwd=root, env=variables) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # pytest has got the signal too, and ends the clusters that it started.
            with contextlib.suppress(KeyboardInterrupt):
                process.wait()
            raise
    return Part(code, times.read(file) if file.exists() else times.Report({}, [], []))


def run_alone(number: int, test: str, root: pathlib.Path) -> Part:
    """Run one test once more in a new process."""
    return run(f"again-{number}", [test], root)
