"""What a run leaves running, found and ended: also what has lost its parent meanwhile."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time

from testing.pytest_plugin import times

PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2): whoever loses its parent becomes a child of this process."""

GRACE_SECONDS = 5.0
"""From SIGTERM to SIGKILL."""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends; `wait` takes care of them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process, and collect the remains of adopted orphans meanwhile.

    A cluster with containers cannot end while the remains of a process inside are there.
    """
    while process.returncode is None:
        pid, status = os.waitpid(-1, 0)
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def end_descendants() -> None:
    """End all that this process and its descendants have started; return when it has ended."""
    for number, grace in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        deadline = time.monotonic() + grace
        for pid in [*times.descendants(os.getpid())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while any(times.descendants(os.getpid())) and time.monotonic() < deadline:
            _reap()
            time.sleep(0.05)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
