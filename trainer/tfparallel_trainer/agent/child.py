"""The forked trainer: passes signals on to it, and reaps it with all that it started.

The agent blocks the signals that it waits for, so that none comes at a moment
when it cannot act on it. If it is the first process of a container, the kernel keeps a blocked
signal for it, and would drop one with the default action.
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import random
import signal
import sys
import time

_ENDING = (signal.SIGTERM, signal.SIGINT)
_INTERRUPT = signal.SIGUSR1
"""Whoever started the agent sends it to end the run alone. The agent stays."""

_AWAITED = frozenset({*_ENDING, _INTERRUPT, signal.SIGCHLD})

_PR_SET_CHILD_SUBREAPER = 36
_REAP_ROUNDS = 200
_ROUND_SECONDS = 0.01


@dataclasses.dataclass(slots=True)
class Requests:
    """The signals that the agent has received."""

    to_end: bool = False
    """Whether the container ends."""
    to_interrupt: bool = False
    """Whether the current run ends, and the container stays."""


def prepare() -> None:
    """Block the awaited signals, and adopt the trainer's descendants that lose their parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def release() -> None:
    """Take signals as they come, in a process that trains."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


def wait(requests: Requests, seconds: float | None) -> None:
    """Wait until a signal comes, or for some seconds; record what it requests."""
    if seconds is None:
        received = signal.sigwaitinfo(_AWAITED).si_signo
    else:
        information = signal.sigtimedwait(_AWAITED, max(0.0, seconds))
        received = 0 if information is None else information.si_signo
    requests.to_end |= received in _ENDING
    requests.to_interrupt |= received == _INTERRUPT


def fork() -> int:
    """Fork the trainer, and return its process id; 0 in the trainer itself.

    Raises:
        OSError: the machine has no room for another process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        release()
        reseed()
    return pid


def follow(pid: int, requests: Requests, grace_seconds: float) -> int:
    """Wait for the end of the trainer and of all that it started; return its exit code.

    A request reaches it as SIGTERM. After the grace it is killed: whoever ends the container does
    so by itself, so only an interrupted run needs it.
    """
    deadline: float | None = None
    has_passed_on = False
    while (status := _reap(pid)) is None:
        is_asked = requests.to_end or requests.to_interrupt
        if is_asked and not has_passed_on:
            os.kill(pid, signal.SIGTERM)
            has_passed_on, deadline = True, time.monotonic() + grace_seconds
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            os.kill(pid, signal.SIGKILL)
            deadline = left = None
        wait(requests, left)
    _end_descendants()
    return status


def _reap(pid: int) -> int | None:
    """Reap what has ended; return the exit code of the trainer if it has."""
    code = None
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            if ended == pid:
                exit_code = os.waitstatus_to_exitcode(status)
                code = exit_code if exit_code >= 0 else 128 - exit_code
    return code


def _end_descendants() -> None:
    """Kill what the trainer left behind. If one dies, its own children come here in turn."""
    for _ in range(_REAP_ROUNDS):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = _children()
        if not children:
            return
        for child in children:
            os.kill(child, signal.SIGKILL)
        time.sleep(_ROUND_SECONDS)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in pathlib.Path("/proc/thread-self/children").read_text().split()]
    except OSError:  # a kernel without the file
        return []


def reseed() -> None:
    """Draw new seeds, as a new process does; a fork has those of its parent."""
    import numpy as np

    random.seed()
    np.random.seed()
