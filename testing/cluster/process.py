"""Starts background processes and ends exactly those, also from another run of this package.

A process is known by its id *and* the moment it started: an id that the system has since given
to somebody else no longer matches, so nothing but our own processes is ever signalled.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testing import waiting
from testing.cluster import console

POLL_SECONDS = 0.1
LOG_TAIL_LINES = 15
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
Check = Callable[[], bool]


@dataclass(frozen=True)
class Record:
    """One process that this package started."""

    name: str
    pid: int
    started: str
    log: str


def environment() -> dict[str, str]:
    """Our environment with administrators' programs, and without proxies: all traffic is local."""
    kept = {name: value for name, value in os.environ.items() if "_proxy" not in name.lower()}
    path = os.environ.get("PATH", os.defpath)
    return kept | {"PATH": os.pathsep.join([path, *SYSTEM_FOLDERS])}


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    keep_open: Sequence[int] = (),
) -> Record:
    """Start in a session of its own, so that Ctrl-C in the terminal does not reach it."""
    with log.open("ab") as output:
        running = subprocess.Popen(  # ended by its record
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
            pass_fds=keep_open,
        )
    started = started_at(running.pid)
    # The record takes over: without this the interpreter warns that the object is forgotten.
    running.returncode = 0
    if started is None:
        raise console.ClusterError(f"{name} ended at once.\n{tail(log)}")
    return Record(name, running.pid, started, str(log))


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, *keep_open: int) -> Iterator[None]:
    """Run a program, and its children, in the body."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,  # entering a cluster's processes takes a second process
            pass_fds=keep_open,
        ) as program,
    ):
        try:
            yield
        finally:
            os.killpg(program.pid, signal.SIGTERM)


def started_at(pid: int) -> str | None:
    """Start time of the living process with this id. None: it does not exist, or is a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{_boot()}:{ticks}"


def alive(record: Record) -> bool:
    """Whether this very process still runs."""
    return started_at(record.pid) == record.started


def stop(records: Iterable[Record], grace: float = 1.0) -> None:
    """Kill these processes and wait until they are gone."""
    handles = [handle for record in records if (handle := _handle(record)) is not None]
    try:
        for signal_number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 60.0)):
            handles = _signal_and_wait(handles, signal_number, patience)
    finally:
        for _, descriptor in handles:
            os.close(descriptor)
    if handles:
        names = ", ".join(record.name for record, _ in handles)
        raise console.ClusterError(f"These processes do not end: {names}")


def wait_until(what: str, check: Check, watched: Sequence[Record], limit: float) -> None:
    """Wait for `check`; the death of a watched process ends the wait with the end of its log."""

    def end() -> str:
        ended = (record for record in watched if not alive(record))
        return "\n".join(f"{record.name} ended.\n{tail(Path(record.log))}" for record in ended)

    try:
        waiting.until(check, what, limit, in_vain=end, poll=POLL_SECONDS)
    except waiting.TimedOutError as error:
        logs = "\n".join(tail(Path(record.log)) for record in watched[-2:])
        raise console.ClusterError(f"{error}\n{logs}") from None


def tail(log: Path) -> str:
    """The end of a log, headed by its path."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return "\n".join([f"--- end of {log}", *lines])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _handle(record: Record) -> tuple[Record, int] | None:
    try:
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return None
    if alive(record):
        return record, descriptor
    os.close(descriptor)
    return None


def _signal_and_wait(
    handles: list[tuple[Record, int]], number: signal.Signals, patience: float
) -> list[tuple[Record, int]]:
    for _, descriptor in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
    deadline = time.monotonic() + patience
    remaining = []
    for record, descriptor in handles:
        left = max(0.0, deadline - time.monotonic())
        ended, _, _ = select.select([descriptor], [], [], left)
        if ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(record.pid, 0)
            os.close(descriptor)
        else:
            remaining.append((record, descriptor))
    return remaining
