"""How busy other programs keep this machine, as Linux counts CPU time."""

import os
import pathlib
import resource
import time

BUSY = 0.1
"""The share of the machine's CPU time above which times say more of other programs than of ours."""

_STAT = pathlib.Path("/proc/stat")
_IDLE = (3, 4)
"""Of the columns of /proc/stat: idle, and waiting for disks."""
_COUNTED = 8
"""Later columns, of virtual machines, are part of earlier ones."""


class LoadMeter:
    """Counts from its creation on what this process and its descendants that have ended use."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._all, self._ours = _read_all(), _read_ours()

    def others(self) -> float | None:
        """Return the share of all processors' time that others used; None: the system hides it."""
        busy, cores = _read_all(), os.cpu_count()
        if self._all is None or busy is None or cores is None:
            return None
        others = busy - self._all - (_read_ours() - self._ours)
        whole = cores * (time.monotonic() - self._began)
        return min(1.0, max(0.0, others / whole)) if whole > 0 else None


def _read_all() -> float | None:
    """Return the seconds in which all processors have worked; None: not Linux."""
    try:
        columns = _STAT.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    worked = (int(ticks) for column, ticks in enumerate(columns[:_COUNTED]) if column not in _IDLE)
    return sum(worked) / os.sysconf("SC_CLK_TCK")


def _read_ours() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
