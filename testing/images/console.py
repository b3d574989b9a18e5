"""Progress on standard error, and programs whose output becomes progress."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testing.cluster import console

TAIL_LINES = 25
WIDTH = 110


class ImageError(console.ClusterError):
    """Something a person can act on; the message is the whole report."""


def say(text: str) -> None:
    """Print one progress line at once, also when standard error is a pipe."""
    print(f"images: {text[:WIDTH]}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str],
    log: Path,
    *,
    shown: Callable[[str], bool],
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a program; its output goes to the log, and the lines that `shown` picks to the terminal.

    Raises:
        ImageError: the program failed; with the end of its output.
    """
    began = time.monotonic()
    lines: list[str] = []
    with (
        log.open("a", encoding="utf-8") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | dict(environment or {}),
        ) as running,
    ):
        for line in running.stdout or ():
            output.write(line)
            lines = [*lines[1 - TAIL_LINES :], line.rstrip()]
            if shown(line):
                say(f"{time.monotonic() - began:4.0f} s  {line.strip()}")
    if running.returncode != 0:
        end = "\n".join(lines)
        raise ImageError(f"{' '.join(command[:3])} … failed ({log}):\n{end}")


def read(command: Sequence[str]) -> str | None:
    """What a program prints; None when it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
