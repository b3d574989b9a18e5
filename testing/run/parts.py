"""Runs pytest in a process of its own, and reads what it reports."""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import IO

from testing.pytest_plugin import times
from testing.pytest_plugin.tiers import Tier
from testing.run import processes

ONE_PER_CORE = 2
"""Workers of the tests that start nothing, and so keep a core at work."""

GIB_PER_WORKER = 4
"""With the clusters that a worker starts, and what it trains."""

ERRORS_SECONDS = 1.0
"""How long the rest of stderr is awaited, which a process that outlives the tests may hold open."""

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


def workers(*, waits: bool) -> list[str]:
    """The options that share tests out among workers.

    Args:
        waiting: the tests wait for clusters and processes half of the time, so that three keep two
            cores at work, if the memory is enough for them.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    count = 3 if waits and memory >= 3 * GIB_PER_WORKER else ONE_PER_CORE
    return [f"--numprocesses={count}", "--dist=loadfile"]


def select(tiers: Iterable[Tier]) -> str:
    """The option that selects tiers."""
    return f"--tier={','.join(tier.title for tier in sorted(tiers))}"


def run(name: str, arguments: Sequence[str], root: pathlib.Path) -> Part:
    """Run pytest in a repository; its reports are called `name`."""
    silent = ["-p", "testing.pytest_plugin.interruption"]
    command = [sys.executable, "-m", "pytest", f"--report={name}", *silent, *arguments]
    file = root / times.FOLDER / f"{name}.json"
    file.unlink(missing_ok=True)
    variables = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    process = subprocess.Popen(command, cwd=root, env=variables, stderr=subprocess.PIPE)
    interrupted = threading.Event()
    reader = threading.Thread(target=_pass_on, args=(process.stderr, interrupted), daemon=True)
    reader.start()
    try:
        code = processes.wait(process)
        reader.join(ERRORS_SECONDS)
    except KeyboardInterrupt:
        interrupted.set()
        # pytest has got the signal too, and ends the clusters that it started.
        with contextlib.suppress(KeyboardInterrupt, ChildProcessError):
            processes.wait(process)
        raise
    return Part(code, times.read(file) if file.exists() else times.Report({}, [], []))


def _pass_on(errors: IO[bytes], interrupted: threading.Event) -> None:
    """Pass on what the tests write to stderr, but no traceback of Ctrl-C."""
    with errors:
        while content := os.read(errors.fileno(), 65_536):
            if not interrupted.is_set():
                os.write(sys.stderr.fileno(), content)


def run_alone(number: int, test: str, root: pathlib.Path) -> Part:
    """Run one test once more in a new process."""
    return run(f"again-{number}", [test], root)
