"""A directory on a disk: drafts become entries by a new name."""

import contextlib
import dataclasses
import os
import pathlib
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import IO, Self

from tfparallel_trainer.storage import directory, durable

_DRAFT = ".writing-"
_QUARANTINED = ".damaged-"
_TICK_NS = 100_000_000
"""File systems may give the same time to all writes within some milliseconds."""


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
        path = self.path / name
        draft = durable.draft(path)
        try:
            draft.write_bytes(content)
            durable.remove_drafts(path, older_than=draft)
            durable.publish(draft, path)
        finally:
            draft.unlink(missing_ok=True)

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
        with durable.opened(self.path / name) as file:
            yield file
        durable.sync_names(self.path)

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
        with durable.opened(draft.path / directory.INDEX) as file:
            file.write(index)
        durable.sync_names(draft.path)
        draft.path.rename(self.path / name)
        durable.sync_names(self.path)

    def remove(self, entry: Self) -> None:
        """Give a folder a draft's name, and remove it as far as that is possible."""
        path = entry.path
        if not path.name.startswith("."):
            path = self.path / f"{_DRAFT}removed-{secrets.token_hex(8)}-{path.name}"
            try:
                entry.path.rename(path)
                durable.sync_names(self.path)
            except OSError:
                return  # an entry stays whole
        durable.remove(path)

    def quarantine(self, entry: Self) -> None:
        """Hide a folder by its name; it replaces one that an earlier save of its name left."""
        hidden = self.path / f"{_QUARANTINED}{entry.name}"
        durable.remove(hidden)
        if os.path.lexists(hidden):  # another user's, perhaps
            hidden = hidden.with_name(f"{hidden.name}-{secrets.token_hex(8)}")
        entry.path.rename(hidden)
        durable.sync_names(self.path)

    def quarantined(self) -> Sequence[Self]:
        """The folders that `quarantine` has hidden."""
        return [self.child(name) for name in self._names() if name.startswith(_QUARANTINED)]

    def fingerprint(self, name: str) -> str | None:
        """Size, inode and times of a file, if a write from now on changes its times."""
        status = (self.path / name).stat()
        if time.time_ns() - status.st_mtime_ns < _TICK_NS:
            return None
        return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"

    def version(self) -> str | None:
        """The time of the last change in this folder."""
        try:
            return str(self.path.stat().st_mtime_ns)
        except OSError:
            return None

    def _names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())
