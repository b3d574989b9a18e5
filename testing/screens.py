"""A terminal of 80 columns: what a person sees of a program, without a window."""

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence

from testing import waiting

COLUMNS = 80
ROWS = 24
_UNBROKEN = 10_000
"""More columns than a line has characters."""

_PARTS = re.compile(
    r"\x1b\[(?P<count>\d*)[\d;]*(?P<order>[A-Za-z])"  # moves the cursor, erases, or sets a colour
    r"|\x1b\[\?\d+[hl]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()=>].?"  # shows nothing
    r"|(?P<character>[^\x1b])",
    re.DOTALL,
)


def render(output: str, columns: int = COLUMNS) -> list[str]:
    """Return the lines that a terminal shows after this output, with those that scrolled away."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for part in _PARTS.finditer(output):
        character, order = part["character"], part["order"]
        if order == "A":
            row = max(0, row - int(part["count"] or 1))
        elif order == "K":
            kept = 0 if part["count"] == "2" else column
            del lines[row][kept:]
        elif character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
        elif character is not None and character >= " ":
            if column == columns:
                row, column = row + 1, 0
            lines += [[] for _ in range(row + 1 - len(lines))]
            line = lines[row]
            line += " " * (column - len(line))
            line[column : column + 1] = character
            column += 1
        lines += [[] for _ in range(row + 1 - len(lines))]
    shown = ["".join(line).rstrip() for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    return shown


class Recording:
    """A program that runs in a terminal, and what the terminal shows."""

    def __init__(
        self, command: Sequence[str], folder: pathlib.Path, environment: Mapping[str, str]
    ) -> None:
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, **size, "TERM": "xterm", "NO_COLOR": "1"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
        self._output = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """What the program has written until now, with the orders to the terminal."""
        return self._output.decode(errors="replace")

    def wait_for(self, text: str, limit: float = waiting.LIMIT_SECONDS) -> None:
        """Wait until the terminal shows a text, wherever it breaks the line.

        Raises:
            TimedOutError: it does not; with what it shows.
        """
        waiting.until(
            lambda: "\n".join(render(self.output, _UNBROKEN)),
            repr(text),
            limit,
            when=lambda shown: text in shown,
        )

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._terminal, f"{text}\n".encode())

    def wait(self, limit: float) -> int:
        """Wait for the end, and return the exit status."""
        status = self._process.wait(limit)
        self._reader.join()
        return status

    def close(self) -> None:
        """End the program, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        os.close(self._terminal)

    def _read(self) -> None:
        """Collect the output; Linux reports the end of a terminal as an error."""
        with contextlib.suppress(OSError):
            while piece := os.read(self._terminal, 1 << 16):
                self._output += piece


@contextlib.contextmanager
def recorded(
    command: Sequence[str], folder: pathlib.Path, environment: Mapping[str, str]
) -> Iterator[Recording]:
    """Run a program in a terminal; it ends at the latest with the block."""
    recording = Recording(command, folder, environment)
    try:
        yield recording
    finally:
        recording.close()
