"""A directory below a prefix of a bucket: an entry counts once its index is there.

A store has no rename, so the draft of an entry has its final name, which holds the writer's, too.
No two processes ever write the same object of an entry.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import obstore

from tfparallel_trainer.storage import address, connection, directory

if TYPE_CHECKING:
    from obstore import store

_QUARANTINED_INDEX = "damaged-index.json"
_CHUNK_BYTES = 16 << 20
"""Of a request; a store takes 10,000 of them for an object, so 160 GB."""
_REQUESTS = 4
"""Requests of an upload at the same time, each with a chunk in memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bucket:
    """The directory at an address."""

    location: address.Address

    def __str__(self) -> str:
        return str(self.location)

    @property
    def name(self) -> str:
        """The last part of the prefix."""
        return self.location.prefix.rpartition("/")[2]

    def child(self, name: str) -> Self:
        return dataclasses.replace(self, location=self.location.child(name))

    def has(self, name: str) -> bool:
        return self._tag(name) is not None

    def read(self, name: str) -> bytes:
        with self._object(name) as key:
            return bytes(obstore.get(self._store, key).bytes())

    def write(self, name: str, content: bytes) -> None:
        """Write a small object, which a store does all at once."""
        with self._object(name) as key:
            obstore.put(self._store, key, content)

    def snapshot(self, name: str) -> directory.Snapshot:
        with contextlib.suppress(FileNotFoundError), self._object(name) as key:
            result = obstore.get(self._store, key)
            tags: Any = {"e_tag": result.meta["e_tag"], "version": result.meta["version"]}
            version = {tag: value for tag, value in tags.items() if value is not None}
            return directory.Snapshot(bytes(result.bytes()), version)
        return directory.Snapshot(None)

    def replace(self, name: str, before: directory.Snapshot, content: bytes) -> bool:
        """Write a small object by a conditional request."""
        mode: Any = before.version or "create"
        with contextlib.suppress(connection.ChangedError), self._object(name) as key:
            obstore.put(self._store, key, content, mode=mode)
            return True
        return False

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        with self._object(name) as key:
            return bytes(obstore.get_range(self._store, key, start=offset, length=length))

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[directory.Writer]:
        """Open a large object to write; it appears when the body has ended."""
        with self._object(name) as key:
            file = obstore.open_writer(
                self._store, key, buffer_size=_CHUNK_BYTES, max_concurrency=_REQUESTS
            )
            yield file
            file.close()  # not after an error: that would publish a partial object

    def entries(self) -> Sequence[Self]:
        """The prefixes here that have an index."""
        return self._prefixes(lambda names: directory.INDEX in names)

    def drafts(self) -> Sequence[Self]:
        """The prefixes here without an index."""
        return self._prefixes(lambda names: not {directory.INDEX, _QUARANTINED_INDEX} & names)

    def draft(self, name: str, writer: str) -> Self:
        """The prefix of the draft, which is also that of the entry."""
        return self.child(f"{name}-{writer}")

    def publish(self, draft: Self, name: str, index: bytes) -> None:
        """Write the index of a draft."""
        draft.write(directory.INDEX, index)

    def remove(self, entry: Self) -> None:
        """Remove the index, then all other objects."""
        with contextlib.suppress(OSError), connection.explained(entry.location):
            index_location = entry.location.child(directory.INDEX)
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, index_location.prefix)
            paths = [meta["path"] for meta in entry.objects()]
            if paths:
                obstore.delete(self._store, paths)

    def quarantine(self, entry: Self) -> None:
        """Give the index another name."""
        content = b""
        with contextlib.suppress(FileNotFoundError):
            content = entry.read(directory.INDEX)
        entry.write(_QUARANTINED_INDEX, content)
        with contextlib.suppress(FileNotFoundError), entry._object(directory.INDEX) as key:
            obstore.delete(self._store, key)

    def quarantined(self) -> Sequence[Self]:
        """The prefixes whose index has another name."""
        return self._prefixes(
            lambda names: _QUARANTINED_INDEX in names and directory.INDEX not in names
        )

    def fingerprint(self, name: str) -> str | None:
        """The path and the tag of an object."""
        return f"{self.location}/{name} {self._tag(name)}"

    def version(self) -> str | None:
        """The tag of this entry's index."""
        return self._tag(directory.INDEX)

    def objects(self) -> Sequence["obstore.ObjectMeta"]:
        """All objects below this prefix, in the order of their keys."""
        with connection.explained(self.location):
            pages = obstore.list(self._store, self.location.prefix or None)
            return sorted((meta for page in pages for meta in page), key=lambda meta: meta["path"])

    def upload(self, path: pathlib.Path, name: str) -> None:
        """Copy a local file of any size; readers see all of it or the content before."""
        with self._object(name) as key:
            obstore.put(self._store, key, path, chunk_size=_CHUNK_BYTES, max_concurrency=_REQUESTS)

    @property
    def _store(self) -> "store.ObjectStore":
        return connection.connect(self.location.scheme, self.location.bucket)

    @contextlib.contextmanager
    def _object(self, name: str) -> Iterator[str]:
        """Yield the key of an object here. Errors of the store in the body are explained."""
        object_location = self.location.child(name)
        with connection.explained(object_location):
            yield object_location.prefix

    def _prefixes(self, has: Callable[[set[str]], bool]) -> Sequence[Self]:
        """The prefixes one level below that are chosen by the names of the objects in them."""
        start = len(self.location.prefix) + 1 if self.location.prefix else 0
        names: dict[str, set[str]] = {}
        for meta in self.objects():
            prefix, _, name = meta["path"][start:].partition("/")
            if name:
                names.setdefault(prefix, set()).add(name)
        return [self.child(prefix) for prefix, below in names.items() if has(below)]

    def _tag(self, name: str) -> str | None:
        with contextlib.suppress(FileNotFoundError), self._object(name) as key:
            meta = obstore.head(self._store, key)
            return f"{meta['e_tag']} {meta['last_modified']}"
        return None


class Mirror:
    """Copies the output folder to the bucket, if a bucket keeps the results."""

    def __init__(self, output: pathlib.Path, results: directory.Directory) -> None:
        self._output = output
        self._bucket = results if isinstance(results, Bucket) else None
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
        for path in sorted(_visible_files(self._output)):
            name = path.relative_to(self._output).as_posix()
            try:
                version = _version(path)
                if self._uploaded.get(name) != version:
                    self._bucket.upload(path, name)
                    self._uploaded[name] = version
            except connection.NameRefusedError:
                continue  # a file of the module's own, which no object can carry
            except FileNotFoundError:
                if path.exists():
                    raise  # it is the bucket that lacks something


def _visible_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Find the files below a folder, and skip those that are removed meanwhile."""
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (pathlib.Path(root, name) for name in names if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _version(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
