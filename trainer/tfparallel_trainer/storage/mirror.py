"""Keeps a copy of a local output folder in a bucket: logs, and at the end the trained model."""

import pathlib
from collections.abc import Iterable
from typing import Protocol

from tfparallel_trainer.storage import bucket, directory


class Mirror(Protocol):
    """Brings what a process writes into its output folder to where results are kept."""

    def restore(self, names: Iterable[str]) -> None:
        """Fetch files that earlier attempts wrote, to append to them."""

    def upload(self) -> None:
        """Copy what has changed since the last time."""


def of(output: pathlib.Path, results: directory.Directory) -> Mirror:
    """The mirror of an output folder, which does nothing if the folder itself keeps results."""
    return _Uploads(output, results) if isinstance(results, bucket.Bucket) else _Nothing()


class _Nothing:
    def restore(self, names: Iterable[str]) -> None:
        pass

    def upload(self) -> None:
        pass


class _Uploads:
    def __init__(self, output: pathlib.Path, results: bucket.Bucket) -> None:
        self._output = output
        self._results = results
        self._uploaded: dict[str, tuple[int, int]] = {}

    def restore(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._output / name
            if not path.exists() and self._results.has(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._results.read(name))
                self._uploaded[name] = _version(path)

    def upload(self) -> None:
        for path in sorted(self._output.rglob("*")):
            name = path.relative_to(self._output).as_posix()
            if name.startswith(".") or "/." in name or not path.is_file():
                continue
            version = _version(path)
            if self._uploaded.get(name) != version:
                self._results.upload(path, name)
                self._uploaded[name] = version


def _version(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
