"""Copies files from a bucket to the local disk, once for all processes of a machine.

A copy belongs to one version of an object: an object that changes is fetched again. Users reach
`fetch` by `context.fetch` and `inputs.Records`.
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import obstore

from tfparallel_trainer import errors
from tfparallel_trainer.storage import address, bucket, connection, durable

if TYPE_CHECKING:
    from obstore import ObjectMeta

_PRIVATE = 0o700
_DOWNLOADS = 8
"""Number of files that are fetched at the same time."""


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
    with _explained(text, cache):
        location = address.Address.parse(text)
        root = (cache or _private_folder()) / location.scheme / location.bucket
        objects = _objects(location, whole_prefix=text.endswith("/"))
        with concurrent.futures.ThreadPoolExecutor(_DOWNLOADS) as pool:
            list(pool.map(lambda meta: _copy(location, meta, root), objects))
    return root / location.prefix


def local(path: str) -> pathlib.Path:
    """The file at a path; of an address, as `fetch` copies it."""
    return fetch(path) if address.is_address(path) else pathlib.Path(path)


@contextlib.contextmanager
def _explained(text: str, cache: pathlib.Path | None) -> Iterator[None]:
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
            f"Cannot fetch {text!r} ({error}): see the server, and the space in "
            f"{cache or _cache()}."
        ) from error


def _objects(location: address.Address, *, whole_prefix: bool) -> "Sequence[ObjectMeta]":
    if not whole_prefix:
        try:
            with connection.explained(location):
                source = connection.connect(location.scheme, location.bucket)
                return [obstore.head(source, location.prefix)]
        except FileNotFoundError:
            connection.check(location)  # the answer to this request tells an object from a bucket
            raise
    files = files_of(bucket.Bucket(location).objects())
    if not files:
        raise FileNotFoundError(f"no object lies below {location}/")
    return files


def files_of(objects: "Sequence[ObjectMeta]") -> "Sequence[ObjectMeta]":
    """All objects but the empty ones that some tools put where a folder would be."""
    keys = (pathlib.PurePosixPath(meta["path"]) for meta in objects)
    folders = {str(parent) for key in keys for parent in key.parents}
    return [meta for meta in objects if meta["path"] not in folders]


def _copy(location: address.Address, meta: "ObjectMeta", root: pathlib.Path) -> None:
    """Fetch an object unless the cache has this version. One process fetches at a time."""
    key = meta["path"]
    path, state = root / key, root / ".state" / hashlib.sha256(key.encode()).hexdigest()
    version = f"{meta['e_tag']} {meta['size']} {meta['last_modified']}\n"
    state.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with state.open("a+", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() == version + _fingerprint(path):
            return
        durable.remove_drafts(path)
        draft = durable.draft(path)
        source = connection.connect(location.scheme, location.bucket)
        item = dataclasses.replace(location, prefix=key)
        try:
            with connection.explained(item), draft.open("wb") as file:
                for chunk in obstore.get(source, key).stream():
                    file.write(chunk)
            if (size := draft.stat().st_size) != meta["size"]:
                raise OSError(errno.EIO, f"{size} of {meta['size']} bytes came", key)
            lock.truncate(0)  # a power cut may leave the one without the other
            lock.flush()
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        lock.write(version + _fingerprint(path))


def _fingerprint(path: pathlib.Path) -> str:
    """Size, inode and times of a copy, which a write changes; empty: there is no copy."""
    try:
        status = path.lstat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"


def _private_folder() -> pathlib.Path:
    """Make the folder of the copies, which no other user may write to.

    Raises:
        BadConfigurationError: another user has made it, or it is a link.
    """
    path = _cache()
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_PRIVATE)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise errors.BadConfigurationError(
            f"Copies of data lie in {path}, which belongs to user {status.st_uid} or is no folder, "
            "so they cannot be trusted. Remove it, or set TMPDIR to a folder of your own."
        )
    if stat.S_IMODE(status.st_mode) != _PRIVATE:
        path.chmod(_PRIVATE)
    return path


def _cache() -> pathlib.Path:
    return pathlib.Path(tempfile.gettempdir()) / f"tfparallel-{os.getuid()}"
