"""Supervises one command: the small process between the runner and the command of a pod.

Usage: supervisor.py CONTROL_FD GRACE_SECONDS COMMAND...

A process must never outlive its runner, also when the runner is killed with SIGKILL and can clean
up nothing. Linux' PR_SET_PDEATHSIG does not give that: it reaches the direct child alone, and
follows the *thread* that started it. So the runner holds one end of a socket and this process the
other. When the runner is gone, the socket ends, and that is the order to stop. No moment is left
unwatched, because the process that starts the command already holds the socket.

The command leads a session of its own: a Ctrl-C in the terminal does not reach it. What it started
ends with it, as in a container. On Linux this includes what left its group, because the supervisor
becomes the parent of processes that lose theirs. This file imports the standard library alone. The
runner starts it by its path, with `python -I -S`, which takes a few hundredths of a second.

Orders on the socket: T terminate (SIGTERM, after the grace SIGKILL), K kill at once, end of file
as T, I interrupt (SIGUSR1, after the grace and a margin SIGKILL), R the interrupted command has
responded. The command writes its id there before it becomes the command, and nobody writes after
that. So a runner whose supervisor was killed reads the id, or the end of the file if nothing was
started. The supervisor exits with the command's exit code, 128 + n when signal n ended it, 126 or
127 when it could not be started.
"""

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time

TERMINATE = b"T"
KILL = b"K"
INTERRUPT = b"I"
RESPONDED = b"R"
CANNOT_RUN = 126
NOT_FOUND = 127

_PR_SET_CHILD_SUBREAPER = 36
_INTERRUPT_SECONDS = 5.0
"""How much longer than its grace an interrupted command may take: it ends a process of its own."""

_ADOPTED_ROUNDS = 200
_ROUND_SECONDS = 0.01


class _Supervisor:
    """The command, and the time by which it must have ended."""

    def __init__(self, command: list[str], grace: float, control: socket.socket) -> None:
        def tell() -> None:
            """Runs in the new process, which leads its group and is not yet the command."""
            with contextlib.suppress(OSError):
                control.sendall(b"%d\n" % os.getpid())

        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=tell
        )
        self._grace = grace
        self._deadline: float | None = None
        self._is_ending = False

    def follow(self, control: socket.socket, signals: int) -> int:
        """Carry out orders until the command has ended; return its exit code."""
        sources: list[socket.socket | int] = [control, signals]
        while self._process.poll() is None:
            ready, _, _ = select.select(sources, [], [], self._left())
            if signals in ready and signal.SIGTERM in os.read(signals, 512):
                self._terminate()
            if control in ready:
                order = _read(control)
                self._carry_out(order)
                if not order:
                    sources.remove(control)
            if self._left() == 0:
                self._signal_group(signal.SIGKILL)
                self._deadline = None
        self._signal_group(signal.SIGKILL)
        _end_adopted()
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _carry_out(self, order: bytes) -> None:
        if order == KILL:
            self._signal_group(signal.SIGKILL)
        elif order == INTERRUPT:
            self._interrupt()
        elif order != RESPONDED:
            self._terminate()
        elif not self._is_ending:
            self._deadline = None

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _terminate(self) -> None:
        """Ask only the command to end, as a kubelet does. The command tells its own children."""
        if not self._is_ending:
            self._is_ending = True
            self._deadline = time.monotonic() + self._grace
            self._process.terminate()

    def _interrupt(self) -> None:
        """Ask the command to end what it does, and to stay."""
        if not self._is_ending:
            self._deadline = time.monotonic() + self._grace + _INTERRUPT_SECONDS
            self._process.send_signal(signal.SIGUSR1)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _adopt_orphans() -> None:
    """Become the parent of the command's descendants that lose theirs (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_adopted() -> None:
    """Kill adopted processes. If one dies, its own children come here in turn."""
    with contextlib.suppress(ChildProcessError):  # nobody is left
        for _ in range(_ADOPTED_ROUNDS):  # not a time, which a pause of the machine uses up
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            for child in _children():
                os.kill(child, signal.SIGKILL)
            time.sleep(_ROUND_SECONDS)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in pathlib.Path("/proc/thread-self/children").read_text().split()]
    except OSError:  # not Linux
        return []


def _read(control: socket.socket) -> bytes:
    try:
        return control.recv(1)
    except ConnectionResetError:
        return b""


def _wake_on_signals() -> int:
    """Return a file that can be read when a signal has come: a child ended, or we are to end.

    Handlers, not SIG_IGN: the command would inherit ignored signals, while exec resets handlers.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing)
    return reading


def main(arguments: list[str]) -> int:
    """Run the command of the arguments under the control socket."""
    control = socket.socket(fileno=int(arguments[0]))
    signals = _wake_on_signals()
    _adopt_orphans()
    command = arguments[2:]
    try:
        supervisor = _Supervisor(command, float(arguments[1]), control)
    except OSError as error:
        print(f"cannot run {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
    return supervisor.follow(control, signals)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
