"""Where a job's code comes from: `spec.trainer.source`, and the chunks of an archive."""

import dataclasses
import hashlib
import io
import posixpath
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated

import pydantic

from tfparallel_trainer.contract import base

CHUNK_KEY = "chunk"
"""The key of `binaryData` that holds a chunk."""

MAX_CHUNKS = 32
"""Most ConfigMaps of an archive; each holds less than 1 MiB."""

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
    content: bytes
    executable: bool


def join(chunks: Iterable[bytes], sha256: str) -> bytes:
    """Return the archive of chunks; a ValueError if its digest is another one."""
    content = b"".join(chunks)
    received = hashlib.sha256(content).hexdigest()
    if received != sha256:
        raise ValueError(f"sha256 is {sha256}, and the chunks have {received}")
    return content


def read_files(content: bytes) -> Iterator[File]:
    """Yield the files of an archive; a ValueError if it is none, or a member leads elsewhere.

    Not `tarfile`'s own filter, which Python 3.11 has from 3.11.4 on: Debian 12 ships 3.11.2.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                path = posixpath.normpath(member.name)
                if path.startswith("/") or path.split("/")[0] == "..":
                    raise ValueError(f"{member.name!r} leads out of its folder")
                if member.isdir():
                    continue
                data = archive.extractfile(member) if member.isfile() else None
                if data is None:
                    raise ValueError(f"{member.name!r} is a link, or no file: archive its content")
                yield File(path, data.read(), bool(member.mode & 0o100))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"not a tar archive compressed by gzip: {error}") from error


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
