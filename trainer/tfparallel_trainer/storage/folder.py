"""A directory on a disk: drafts become entries by a new name."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import IO, Self

from tfparallel_trainer.storage import directory

_DRAFT = ".writing-"


@dataclasses.dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine, or one that it has mounted."""

    path: pathlib.Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def child(self, name: str) -> Self:
        return dataclasses.replace(self, path=self.path / name)

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / f".{name}.{os.getpid()}"
        with _durable(draft) as file:
            file.write(content)
        draft.replace(self.path / name)
        _keep_names(self.path)

    def snapshot(self, name: str) -> directory.Snapshot:
        try:
            return directory.Snapshot(self.read(name))
        except FileNotFoundError:
            return directory.Snapshot(None)

    def replace(self, name: str, before: directory.Snapshot, content: bytes) -> bool:
        """Write a small file; of writers at the same time, the last one counts."""
        self.write(name, content)
        return True

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with (self.path / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[IO[bytes]]:
        self.path.mkdir(parents=True, exist_ok=True)
        with _durable(self.path / name) as file:
            yield file
        _keep_names(self.path)

    def entries(self) -> Sequence[Self]:
        """All folders here but drafts."""
        return [self.child(name) for name in self._names() if not name.startswith(".")]

    def drafts(self) -> Sequence[Self]:
        """Drafts that writers left, and those that are being written."""
        return [self.child(name) for name in self._names() if name.startswith(_DRAFT)]

    def draft(self, name: str, writer: str) -> Self:
        """A folder that has no entry's name yet."""
        return self.child(f"{_DRAFT}{writer}-{name}")

    def publish(self, draft: Self, name: str, index: bytes) -> None:
        """Write the index into a draft and rename it."""
        with _durable(draft.path / directory.INDEX) as file:
            file.write(index)
        _keep_names(draft.path)
        draft.path.rename(self.path / name)
        _keep_names(self.path)

    def remove(self, entry: Self) -> None:
        """Remove a folder as far as that is possible."""
        shutil.rmtree(entry.path, ignore_errors=True)

    def version(self) -> str | None:
        """The time of the last change in this folder."""
        try:
            return str(self.path.stat().st_mtime_ns)
        except OSError:
            return None

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


@contextlib.contextmanager
def _durable(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Open a file whose content is on the disk when the body ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _keep_names(folder: pathlib.Path) -> None:
    """Let the names in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
