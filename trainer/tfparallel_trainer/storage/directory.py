"""The interface of the storage of checkpoints."""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self

INDEX = "index.json"
"""The file that is written last into an entry: the entry counts once it is in place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """A small file as it was when it was read."""

    content: bytes | None
    """None: the file was missing."""
    version: object = None
    """The version of the file, as the storage names it."""


class Writer(Protocol):
    """A writer of a large file."""

    def write(self, content: bytes, /) -> object:
        """Append bytes."""


class Directory(Protocol):
    """A folder, or a prefix of a bucket, with files and with entries.

    An entry is a subdirectory that appears all at once: its files are written to a draft, which
    `publish` turns into the entry. All methods raise OSError if the storage fails, and
    FileNotFoundError if a file is missing.
    """

    @property
    def name(self) -> str:
        """The last part of the path."""

    def child(self, name: str) -> Self:
        """A subdirectory, whether or not it exists."""

    def has(self, name: str) -> bool:
        """Whether a file exists."""

    def read(self, name: str) -> bytes:
        """Read a small file."""

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, so that readers see all of it or the content before."""

    def snapshot(self, name: str) -> Snapshot:
        """Read a small file to replace it."""

    def replace(self, name: str, before: Snapshot, content: bytes) -> bool:
        """Write a small file; False: another writer has changed it since it was read."""

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Read a part of a large file; fewer than `length` bytes where the file ends."""

    def writer(self, name: str) -> AbstractContextManager[Writer]:
        """Open a large file to write; it outlasts a power cut once the body has ended well."""

    def entries(self) -> Sequence[Self]:
        """The subdirectories that may be entries, in the order of their names."""

    def drafts(self) -> Sequence[Self]:
        """Drafts that were not published, or of which only a part has been removed."""

    def draft(self, name: str, writer: str) -> Self:
        """The place for the files of an entry, by one of its writers, until it is published."""

    def publish(self, draft: Self, name: str, index: bytes) -> None:
        """Write the index of a draft whose files are complete, and turn it into an entry."""

    def remove(self, entry: Self) -> None:
        """Remove an entry or a draft; of an entry, what cannot be removed is a draft at once."""

    def quarantine(self, entry: Self) -> None:
        """Hide a damaged entry, without removing its files."""

    def quarantined(self) -> Sequence[Self]:
        """The entries that `quarantine` has hidden, in the order of their names."""

    def fingerprint(self, name: str) -> str | None:
        """Changes when a file is written; None where a change could not be told yet."""

    def version(self) -> str | None:
        """Changes when this entry is replaced by another of its name; None: it is gone."""
