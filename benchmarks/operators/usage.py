"""What a process has used, as the kernel tells it in /proc."""

import os
import pathlib

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU time, of all threads since the start of the process."""
    text = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident(pid: int) -> float:
    """MB of memory that are resident now."""
    return _megabytes(pid, "VmRSS")


def most_resident(pid: int) -> float:
    """MB of memory that were resident at most."""
    return _megabytes(pid, "VmHWM")


def _megabytes(pid: int, name: str) -> float:
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024 / 1e6
