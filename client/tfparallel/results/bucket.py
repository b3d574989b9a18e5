"""Results in an object store, read with the credentials of this machine."""

import asyncio
import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncIterator, Iterator, Sequence

import obstore

from tfparallel import errors
from tfparallel.results import files
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_trainer.storage import bucket, connection, prefix
from tfparallel_trainer.storage.address import Address

_IS_FOLDER = "other files have its name as their folder"


@dataclasses.dataclass(frozen=True, slots=True)
class BucketStore:
    """What lies below an address."""

    address: Address

    async def list_files(self) -> Sequence[files.ResultFile]:
        """Return the objects below the prefix."""
        with _explained():
            objects = await asyncio.to_thread(bucket.Bucket(self.address).objects)
        start = len(self.address.prefix) + 1
        listed = [(meta["path"][start:], meta["size"]) for meta in objects]
        folders = {parent for path, _ in listed for parent in _folders(path)}
        return [
            files.ResultFile(path, size, _IS_FOLDER if path in folders else "")
            for path, size in listed
            # Some tools put an empty object where a folder would be.
            if path and (size or path not in folders)
        ]

    async def read(self, file: files.ResultFile, offset: int) -> AsyncIterator[bytes]:
        """Yield the content of an object from a byte on."""
        if offset >= file.size:
            return
        object_address = self.address.child(file.path)
        with _explained(), _telling_gone(), connection.explained(object_address):
            store = await asyncio.to_thread(
                connection.connect, object_address.scheme, object_address.bucket
            )
            options: obstore.GetOptions = {"range": (offset, file.size)}
            result = await obstore.get_async(store, object_address.prefix, options=options)
            async for chunk in result.stream():
                yield bytes(chunk)

    async def compute_digest(self, file: files.ResultFile) -> str | None:
        """Return None: stores give no SHA-256, and TLS guards what they send."""
        return None


def _folders(path: str) -> Iterator[str]:
    return (str(parent) for parent in pathlib.PurePosixPath(path).parents)


async def find(uri: str, namespace: str, name: str) -> BucketStore:
    """Find where a job keeps its results."""
    with _explained():
        return BucketStore(await asyncio.to_thread(prefix.of_job, uri, namespace, name))


@contextlib.contextmanager
def _telling_gone() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise files.LeftOutError(files.GONE) from error


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise what a store refuses as a failure, and what may pass as unavailable."""
    try:
        yield
    except (connection.RefusedError, FileNotFoundError) as error:
        raise errors.Failure(f"the bucket cannot be read from this machine: {error}") from error
    except OSError as error:
        raise api_errors.Unavailable(str(error)) from error
