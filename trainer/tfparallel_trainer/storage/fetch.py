"""Copies files from a bucket to the local disk, once for all processes of a machine.

A copy belongs to one version of an object: an object that changes is fetched again. Users reach
`fetch` by `context.fetch` and `inputs.Records`.
"""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import obstore

from tfparallel_trainer import errors
from tfparallel_trainer.storage import address, bucket, connection

if TYPE_CHECKING:
    from obstore import ObjectMeta

_DOWNLOADS = 8
"""Files that are fetched at the same time."""


def fetch(text: str, cache: pathlib.Path | None = None) -> pathlib.Path:
    """Copy an object, or all objects below a prefix that ends with a slash, to the local disk.

    Args:
        text: s3://bucket/key, s3://bucket/prefix/, or the same with gs.
        cache: the folder of the copies; absent: one in the temporary directory ($TMPDIR).

    Returns:
        The local file; of a prefix, the local folder.

    Raises:
        BadConfigurationError: it is no such address, nothing is there, or access is refused.
        StorageError: the store does not answer, or the disk is full.
    """
    with _explained(text):
        place = address.Address.parse(text)
        root = (cache or _cache()) / place.scheme / place.bucket
        objects = _objects(place, whole_prefix=text.endswith("/"))
        with concurrent.futures.ThreadPoolExecutor(_DOWNLOADS) as pool:
            list(pool.map(lambda meta: _copy(place, meta, root), objects))
    return root / place.prefix


def local(path: str) -> pathlib.Path:
    """The file at a path; of an address, as `fetch` copies it."""
    return fetch(path) if address.is_address(path) else pathlib.Path(path)


@contextlib.contextmanager
def _explained(text: str) -> Iterator[None]:
    """Raise errors of the trainer that name an address."""
    try:
        yield
    except ValueError as error:
        raise errors.BadConfigurationError(f"Cannot fetch {error}.") from error
    except (FileNotFoundError, connection.RefusedError) as error:
        reason = error.strerror or error
        raise errors.BadConfigurationError(f"Cannot fetch {text!r}: {reason}.") from error
    except OSError as error:
        raise errors.StorageError(
            f"Cannot fetch {text!r} ({error}): see the server, and the space in {_cache()}."
        ) from error


def _objects(place: address.Address, *, whole_prefix: bool) -> "Sequence[ObjectMeta]":
    if not whole_prefix:
        try:
            with connection.explained(place):
                source = connection.connect(place.scheme, place.bucket)
                return [obstore.head(source, place.prefix)]
        except FileNotFoundError:
            connection.check(place)  # the answer to this request tells an object from a bucket
            raise
    files = files_of(bucket.Bucket(place).objects())
    if not files:
        raise FileNotFoundError(f"no object lies below {place}/")
    return files


def files_of(objects: "Sequence[ObjectMeta]") -> "Sequence[ObjectMeta]":
    """All objects but the empty ones that some tools put where a folder would be."""
    keys = (pathlib.PurePosixPath(meta["path"]) for meta in objects)
    folders = {str(parent) for key in keys for parent in key.parents}
    return [meta for meta in objects if meta["path"] not in folders]


def _copy(place: address.Address, meta: "ObjectMeta", root: pathlib.Path) -> None:
    """Fetch an object unless this version of it is there; one process at a time."""
    key = meta["path"]
    path, state = root / key, root / ".state" / hashlib.sha256(key.encode()).hexdigest()
    version = f"{meta['e_tag']} {meta['size']} {meta['last_modified']}"
    state.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with state.open("a+", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() == version and path.is_file():
            return
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        source = connection.connect(place.scheme, place.bucket)
        with connection.explained(dataclasses.replace(place, prefix=key)), draft.open("wb") as file:
            for chunk in obstore.get(source, key).stream():
                file.write(chunk)
        draft.replace(path)
        lock.truncate(0)
        lock.write(version)


def _cache() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir()) / f"tfparallel-{os.getuid()}"
