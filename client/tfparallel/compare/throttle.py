"""Throttles a command by a factor: stops it for most of each short period.

Usage: throttle.py FACTOR COMMAND...

Stopping (SIGSTOP, SIGCONT) slows everything that the command's process does, as a slower processor
would: Python, TensorFlow's threads and its answers to others. No code of the command knows of
it. A slice of running is followed by a pause, so that the CPU time of the slice has taken
FACTOR times as long. While the command only waits it has no pause. A slice with several busy
threads counts once, for they are slowed together. Pauses are far shorter than any limit after
which a peer is given up. What the command itself starts is not slowed.

Other systems than Linux do not show the CPU time of another process. There the duration of the
slice counts, so that waiting is slowed too.

This file imports the standard library alone and is run by its path, with `python -I -S`. It hands
SIGTERM on, and then lets the command end at full speed. It ends with the command's exit code,
128 + n when signal n ended it, 126 or 127 when it could not be started.
"""

import contextlib
import signal
import subprocess
import sys
import time

SLICE_SECONDS = 0.002
"""How long the command runs without a pause."""

CANNOT_RUN = 126
NOT_FOUND = 127

_SCHEDULED = 2
"""In the id of a process's clock, as Linux makes it: time on the processor, in nanoseconds."""


class _Throttled:
    """A command that runs for one part in FACTOR of the time."""

    def __init__(self, command: list[str], factor: float) -> None:
        self._factor = factor
        self._ending = False
        # Before the command starts: a SIGTERM must never end this process and leave the command.
        signal.signal(signal.SIGTERM, self._end)
        self._process = subprocess.Popen(command)

    def _end(self, *_: object) -> None:
        self._ending = True

    def follow(self) -> int:
        """Slow the command until it has ended; return its exit code."""
        owed = 0.0  # pause that the command has not had yet
        since, used = time.monotonic(), self._used()
        while self._process.poll() is None and not self._ending:
            time.sleep(SLICE_SECONDS)
            lasted, before, used = time.monotonic() - since, used, self._used()
            since += lasted
            owed += (self._factor - 1) * min(lasted, used - before)
            if owed < SLICE_SECONDS:
                continue
            self._send(signal.SIGSTOP)
            time.sleep(owed)
            self._send(signal.SIGCONT)
            owed -= time.monotonic() - since
            since = time.monotonic()
        self._process.terminate()  # does nothing where it has ended by itself
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _used(self) -> float:
        """CPU time that the command's process has used."""
        if sys.platform != "linux":
            return time.monotonic()
        with contextlib.suppress(OSError):  # it has just ended
            return time.clock_gettime(~self._process.pid << 3 | _SCHEDULED)
        return 0.0

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def build_command(factor: float) -> list[str]:
    """Return the program, with its arguments, that runs a command throttled by a factor."""
    return [sys.executable, "-I", "-S", __file__, str(factor)]


def main(arguments: list[str]) -> int:
    """Run the command of the arguments, throttled."""
    factor, command = float(arguments[0]), arguments[1:]
    try:
        throttled = _Throttled(command, factor)
    except OSError as error:
        print(f"cannot run {command[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
    return throttled.follow()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
