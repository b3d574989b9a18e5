"""Keeps a copy of a local output folder in a bucket: logs, and at the end the trained model."""

import pathlib
from collections.abc import Iterable

from tfparallel_trainer.storage import bucket, directory


class Mirror:
    """Brings what a process writes into its output folder to the bucket that keeps results.

    It does nothing if the folder itself keeps them.
    """

    def __init__(self, output: pathlib.Path, results: directory.Directory) -> None:
        self._output = output
        self._bucket = results if isinstance(results, bucket.Bucket) else None
        self._uploaded: dict[str, tuple[int, int]] = {}

    def restore(self, names: Iterable[str]) -> None:
        """Fetch files that earlier attempts wrote, to append to them."""
        if self._bucket is None:
            return
        for name in names:
            path = self._output / name
            if not path.exists() and self._bucket.has(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._bucket.read(name))
                self._uploaded[name] = _version(path)

    def upload(self) -> None:
        """Copy what has changed since the last time."""
        if self._bucket is None:
            return
        for path in sorted(self._output.rglob("*")):
            name = path.relative_to(self._output).as_posix()
            if name.startswith(".") or "/." in name or not path.is_file():
                continue
            version = _version(path)
            if self._uploaded.get(name) != version:
                self._bucket.upload(path, name)
                self._uploaded[name] = version


def _version(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
