"""Where a job's code comes from: `spec.trainer.source`, and the chunks of an archive."""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import posixpath
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Annotated

import pydantic

from tfparallel_trainer.contract import base

CHUNK_KEY = "chunk"
"""The key of `binaryData` that holds a chunk."""

MAX_CHUNKS = 32
"""Most ConfigMaps of an archive; each holds less than 1 MiB."""

MAX_BYTES = 4 * MAX_CHUNKS * 1_000_000
"""Most bytes of the files of an archive together, unpacked."""

MAX_FILES = 20_000
"""Most files and folders of an archive."""

_BLOCK_BYTES = 1 << 20
_MAX_UNPACKED = MAX_BYTES + 3 * MAX_FILES * tarfile.BLOCKSIZE
"""With the headers of the files."""
_LONGEST_PATH = 1024
_BEYOND = (
    f"it holds more than {MAX_BYTES // 1_000_000} MB or {MAX_FILES:,} files: leave out data, which "
    "volumes and buckets are for"
)

_FILE = "^[A-Za-z0-9_][-A-Za-z0-9._]*(/[A-Za-z0-9_][-A-Za-z0-9._]*)*$"
"""A path below a folder, which leads nowhere else."""


def chunk_file(number: int) -> str:
    """Return the name of the file of a chunk, so that names sort in the order of the chunks."""
    return f"{number:04}"


@dataclasses.dataclass(frozen=True, slots=True)
class File:
    """A file of an archive."""

    path: str
    """Below the folder of the source."""
    blocks: Iterator[bytes]
    """Its content, which has to be taken before the next file; a ValueError where it ends early."""
    executable: bool


def join(chunks: Iterable[bytes], sha256: str) -> bytes:
    """Return the archive of chunks; a ValueError if its digest is another one."""
    content = b"".join(chunks)
    received = hashlib.sha256(content).hexdigest()
    if received != sha256:
        raise ValueError(f"sha256 is {sha256}, and the chunks have {received}")
    return content


def read_files(content: bytes) -> Iterator[File]:
    """Yield the files of an archive.

    Not `tarfile`'s own filter, which Python 3.11 has from 3.11.4 on: Debian 12 ships 3.11.2.

    Raises:
        ValueError: it is not an archive or beyond a limit, or a member leads elsewhere.
    """
    with _explained(), tarfile.open(fileobj=_Unpacked(content), mode="r:") as archive:
        total = 0
        for number, member in enumerate(archive, 1):
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            total += max(member.size, 0)
            if number > MAX_FILES or total > MAX_BYTES:
                raise ValueError(_BEYOND)
            path = posixpath.normpath(member.name)
            if path.startswith("/") or path.split("/")[0] == "..":
                raise ValueError(f"{member.name[:100]!r} leads out of its folder")
            if len(path) > _LONGEST_PATH:
                raise ValueError(
                    f"{path[:100]!r}… is a path of {len(path)} characters, of {_LONGEST_PATH}"
                )
            if member.isdir():
                continue
            data = archive.extractfile(member) if member.isfile() else None
            if data is None:
                raise ValueError(
                    f"{member.name[:100]!r} is a link, or no file: archive its content"
                )
            yield File(path, _read_blocks(data), bool(member.mode & 0o100))


def _read_blocks(data: IO[bytes]) -> Iterator[bytes]:
    # An iterator runs in its caller, where `read_files` catches nothing.
    with _explained():
        while block := data.read(_BLOCK_BYTES):
            yield block


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn what `tarfile` raises for a broken archive into a ValueError."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"not a tar archive compressed by gzip: {error}") from error
    except RecursionError as error:  # `tarfile` calls itself for each header of a row
        raise ValueError("it holds too many headers without a file") from error


class _Unpacked(io.RawIOBase):
    """The unpacked bytes of an archive, read forward in blocks, up to a limit."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._file = gzip.GzipFile(fileobj=io.BytesIO(content))

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _BLOCK_BYTES:
            raise ValueError(f"a header of {size} bytes, of {_BLOCK_BYTES}")
        if self.tell() + size > _MAX_UNPACKED:
            raise ValueError(_BEYOND)
        return self._file.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if position < self.tell():
            raise ValueError("a member that leads back")
        while (left := position - self.tell()) > 0 and self.read(min(left, _BLOCK_BYTES)):
            pass
        return self.tell()

    def tell(self) -> int:
        return self._file.tell()


class Archive(base.Model):
    """A tar archive, compressed by gzip, in chunks."""

    config_maps: Annotated[
        tuple[Annotated[str, pydantic.Field(min_length=1, max_length=253)], ...],
        pydantic.Field(min_length=1, max_length=MAX_CHUNKS),
    ]
    """Names of ConfigMaps in the job's namespace, in the order of their chunks. Each has its chunk
    as the key chunk of its binaryData."""

    sha256: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the whole archive, as 64 hexadecimal digits in lower case."""


class ConfigMapSource(base.Model):
    """Files of a ConfigMap."""

    name: Annotated[str, pydantic.Field(min_length=1)]
    """Name of a ConfigMap in the job's namespace; each of its keys becomes a file."""


class Source(base.Model):
    """Where the user's module comes from when it is not part of the image: one of its fields."""

    config_map: ConfigMapSource | None = None
    """A ConfigMap whose keys are the module's files.
    `tfparallel run` takes the folder of the job's file instead."""

    archive: Archive | None = None
    """An archive of the module's folder, in ConfigMaps. An init container checks and unpacks it."""

    requirements: Annotated[str, pydantic.Field(max_length=253, pattern=_FILE)] | None = None
    """A file of the source with requirements of pip, such as requirements.txt. An init container
    installs them; packages of the image keep their versions."""
