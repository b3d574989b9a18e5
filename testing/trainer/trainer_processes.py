"""Processes that tests start: new ones, or forked from one that has loaded TensorFlow.

A new Python needs about six CPU seconds until it has imported TensorFlow, a forked one none. What
differs: import order, and what is read from the environment while TensorFlow is imported.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import multiprocessing.context
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Protocol, TypeVar

from testing import paths
from tfparallel_trainer.agent import child

PRELOADED = "testing.trainer.preloaded"
LIMITS = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "TF_NUM_INTRAOP_THREADS": "1",
}
"""The environment that a process on two shared cores gets."""


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What a process runs: the arguments of Python, its environment, and files for its output."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdout: pathlib.Path
    stderr: pathlib.Path


class Process(Protocol):
    """A running process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code; minus the signal's number if one ended it; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal unless the process has ended."""

    def kill(self) -> None:
        """Send SIGKILL unless the process has ended."""

    def terminate(self) -> None:
        """Send SIGTERM unless the process has ended."""


Start = Callable[[Command], Process]
T = TypeVar("T")


def new(command: Command) -> Process:
    """Start a new Python."""
    with command.stdout.open("wb") as stdout, command.stderr.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, *command.arguments],
            env=dict(command.environment),
            stdout=stdout,
            stderr=stderr,
        )


def forked(command: Command) -> Process:
    """Fork a process from the one that has loaded TensorFlow; the first call starts that one."""
    for file in (command.stdout, command.stderr):
        file.write_bytes(b"")  # whoever reads them need not wait for the process to open them
    process = _context().Process(target=_run, args=(command,))
    process.start()
    return _Forked(process)


def call(function: Callable[..., T], *arguments: object) -> T:
    """Call a function of a module in a forked process, which has run nothing else.

    Raises:
        RuntimeError: it ended without an answer; what it wrote says why.
    """
    receiver, sender = _context().Pipe(duplex=False)
    process = _context().Process(target=_answer, args=(sender, function, *arguments), daemon=True)
    process.start()
    sender.close()
    try:
        answer: T = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{function.__name__} ended with {process.exitcode}.") from None
    process.join()
    return answer


def _answer(
    sender: connection.Connection, function: Callable[..., object], *arguments: object
) -> None:
    sender.send(function(*arguments))


class _Forked:
    def __init__(self, process: multiprocessing.context.ForkServerProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # The forkserver knows of its end first.
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def cpu_seconds(process: Process) -> float:
    """Return the CPU time that a running process has used, threads included."""
    clock = (~process.pid << 3) | 2  # as clock_getcpuclockid(3) makes it
    return time.clock_gettime(clock)


@functools.cache
def _context() -> multiprocessing.context.ForkServerContext:
    """Start the forkserver; it ends with this process."""
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    before = dict(os.environ)
    path = os.pathsep.join([str(paths.ROOT), *filter(None, [before.get("PYTHONPATH")])])
    os.environ.update(LIMITS, TF_CPP_MIN_LOG_LEVEL="2", PYTHONPATH=path)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def _run(command: Command) -> None:
    """Run in the forked process what a new Python would do with the command."""
    if PRELOADED not in sys.modules:
        raise RuntimeError(f"The forkserver could not import {PRELOADED}.")
    os.environ.clear()
    os.environ.update(command.environment)
    for number, file in enumerate((command.stdout, command.stderr), 1):
        target = os.open(file, os.O_WRONLY)
        os.dup2(target, number)
        os.close(target)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    child.reseed()
    try:
        _execute(command.arguments)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _execute(arguments: Sequence[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(arguments)
    sys.path.insert(0, str(pathlib.Path(arguments[0]).parent))
    runpy.run_path(arguments[0], run_name="__main__")
