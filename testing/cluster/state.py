"""The record of a cluster in its folder: what was started, so that it can be ended later.

The record is written before anything starts and after every start, so a run that dies half-way
leaves behind exactly what the next `up` or `down` needs to clean up after it.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing.cluster import console, process, settings

FILE = "cluster.json"


@dataclass(frozen=True)
class ClusterState:
    """What the folder says about its cluster."""

    name: str
    mode: str
    asked: Mapping[str, int | bool]
    ready: bool = False
    processes: tuple[process.Record, ...] = ()

    def serves(self, cluster_settings: settings.Settings) -> bool:
        """Whether this cluster is what `wanted` asks for."""
        return self.mode == cluster_settings.mode and self.asked == dataclasses.asdict(
            cluster_settings
        )

    def running(self) -> bool:
        """Whether it came up and everything that was started still runs."""
        return self.ready and all(process.alive(record) for record in self.processes)


class Ledger:
    """Starts processes on behalf of one cluster and writes each one down."""

    def __init__(self, directory: Path, state: ClusterState) -> None:
        self.directory = directory
        self.state = state
        self._save()

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def processes(self) -> tuple[process.Record, ...]:
        return self.state.processes

    def start(
        self,
        name: str,
        command: Sequence[str],
        keep_open: Sequence[int] = (),
    ) -> process.Record:
        """Start a process whose output goes to a log file of its name."""
        log = self.directory / f"{name}.log"
        record = process.start(name, command, log, keep_open)
        self._change(processes=(*self.processes, record))
        return record

    def adopt(self, name: str, pid: int, log: str) -> None:
        """Record a process that one of ours started, and for which `down` has to wait."""
        started = process.started_at(pid)
        if started is None:
            raise console.ClusterError(f"{name} ended at once.\n{process.tail(Path(log))}")
        self._change(processes=(*self.processes, process.Record(name, pid, started, log)))

    def wait_until(self, what: str, check: process.Check, limit: float) -> None:
        """Wait for a condition, during which all started processes must stay alive."""
        process.wait_until(what, check, self.processes, limit)

    def mark_ready(self) -> None:
        self._change(ready=True)

    def _change(self, **changes: Any) -> None:
        self.state = dataclasses.replace(self.state, **changes)
        self._save()

    def _save(self) -> None:
        partial = self.directory / f".{FILE}"
        partial.write_text(json.dumps(dataclasses.asdict(self.state), indent=2), encoding="utf-8")
        partial.rename(self.directory / FILE)


def load(directory: Path) -> ClusterState | None:
    """The cluster that the folder records, if it records one."""
    try:
        fields = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    processes = tuple(process.Record(**record) for record in fields.pop("processes"))
    return ClusterState(**fields, processes=processes)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time per cluster; the folder itself is the lock.

    Whoever waited may find that the folder was removed meanwhile, and then takes a new one.
    """
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(directory, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if directory.exists() and os.path.samestat(os.fstat(descriptor), directory.stat()):
                break
            os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def require_own_folder(directory: Path) -> None:
    """Refuse a folder that holds something else: `down` removes the whole folder."""
    if load(directory) is None and any(directory.iterdir()):
        raise console.ClusterError(f"{directory} is not empty and holds no cluster.")


def remove(directory: Path) -> None:
    """Remove the cluster's folder, its record last, so that a removal can be repeated."""
    for entry in directory.iterdir():
        if entry.name == FILE:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (directory / FILE).unlink(missing_ok=True)
    directory.rmdir()
