"""Programs whose output goes to a log, with their progress on standard error."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

WIDTH = 110


class ImageError(Exception):
    """Something a person can act on; the message is the whole report."""


class ProgramError(Exception):
    """A program failed; the message is the last line of its output."""


def say(text: str) -> None:
    """Print one progress line at once, also when standard error is a pipe."""
    print(f"images: {text[:WIDTH]}", file=sys.stderr, flush=True)


def run(
    command: Sequence[str],
    log: Path,
    *,
    shown: Callable[[str], bool] = bool,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a program; its output goes to the log, and the lines that `shown` picks to the terminal.

    Raises:
        ProgramError: the program failed.
    """
    began = time.monotonic()
    last = ""
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
            last = line.strip() or last
            if shown(line):
                say(f"{time.monotonic() - began:4.0f} s  {line.strip()}")
    if running.returncode != 0:
        raise ProgramError(last or f"exit status {running.returncode}")


def read(command: Sequence[str]) -> str | None:
    """What a program prints; None when it fails or does not exist."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
