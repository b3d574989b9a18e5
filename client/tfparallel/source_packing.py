"""The files of a job as an archive that fits into ConfigMaps."""

import base64
import dataclasses
import gzip
import hashlib
import io
import os
import pathlib
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

import pathspec

from tfparallel_operator.api import load, names
from tfparallel_trainer.contract import source_code

IGNORE_FILE = ".tfparallelignore"
"""The file with patterns of files that are not sent, as in a .gitignore.

A subfolder may have its own.
"""

REQUIREMENTS = "requirements.txt"
"""The file with packages that the job installs before it starts."""

CHUNK_BYTES = 1_000_000
"""Bytes of an archive in one ConfigMap, which holds 1 MiB including its names."""

MAX_CHUNKS = source_code.MAX_CHUNKS
MAX_FILE_BYTES = source_code.MAX_BYTES
"""Maximum size of all files before compression. Larger files are not even read."""

LABEL_SOURCE = f"{names.GROUP}/source"
"""Label of the ConfigMaps of an archive: its digest."""

_IGNORED = (
    ".*",
    "__pycache__/",
    "*.pyc",
    "node_modules/",
    "venv/",
    "/runs/",
    "/*-report.html",  # of `tfparallel report`
    "*.egg-info/",
)
_SHOWN = 3
"""The largest files that the refusal of a large source names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Archive:
    """The files of a folder, packed: equal files give equal bytes."""

    data: bytes
    files: Sequence[str]
    """Paths below the folder."""

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def chunks(self) -> Sequence[bytes]:
        """The bytes in parts of which each fits into a ConfigMap."""
        starts = range(0, len(self.data), CHUNK_BYTES)
        return [self.data[start : start + CHUNK_BYTES] for start in starts]

    def config_maps(self, job: str) -> list[dict[str, Any]]:
        """Return the manifests of the ConfigMaps that carry the archive, in order."""
        return [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": f"{job}-source-{self.digest[:8]}-{number}",
                    "labels": {names.LABEL_JOB: job, LABEL_SOURCE: self.digest[:63]},
                },
                "binaryData": {source_code.CHUNK_KEY: base64.b64encode(chunk).decode()},
                "immutable": True,
            }
            for number, chunk in enumerate(self.chunks)
        ]

    def source(self, job: str) -> dict[str, Any]:
        """Return `spec.trainer.source` of a job that runs these files."""
        listed = [config_map["metadata"]["name"] for config_map in self.config_maps(job)]
        needs = {"requirements": REQUIREMENTS} if REQUIREMENTS in self.files else {}
        return {"archive": {"configMaps": listed, "sha256": self.digest}, **needs}


def pack(folder: pathlib.Path, program: str | None, field: str = "spec.trainer.module") -> Archive:
    """Pack the files that lie next to a job's file, folders too.

    Args:
        folder: of the job's file.
        program: the file that the job runs, below it; None: not known.
        field: of the job, which names the program.

    Raises:
        SpecError: the program is missing or ignored, or the files are too large or unreadable.
    """
    try:
        return _pack(folder, program, field)
    except OSError as error:
        raise load.SpecError(
            f"{error.filename or folder}: cannot be sent with the job ({error.strerror or error})."
            f" Make it readable and run the command again, or name it in {IGNORE_FILE}"
        ) from error


def _pack(folder: pathlib.Path, program: str | None, field: str) -> Archive:
    paths = list(_find_files(folder))
    listed = [path.relative_to(folder).as_posix() for path in paths]
    if program is not None and program not in listed:
        reason = "is ignored" if (folder / program).is_file() else "does not exist"
        raise load.SpecError(
            f"{field}: {program!r} {reason} in {folder}: correct the name, or {IGNORE_FILE}"
        )
    if sum(path.stat().st_size for path in paths) > MAX_FILE_BYTES:
        raise load.SpecError(_too_large(paths, folder, "more than fits, packed or not"))
    if len(paths) > source_code.MAX_FILES:
        raise load.SpecError(
            f"{folder}: {len(paths):,} files are next to the job's file, and a job's source has at"
            f" most {source_code.MAX_FILES:,}. Keep data in a claim or a bucket, and name files"
            f" that the job does not need in {IGNORE_FILE}"
        )
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, name in zip(paths, listed, strict=True):
            content = path.read_bytes()
            archive.addfile(_describe(path, name, len(content)), io.BytesIO(content))
    packed = Archive(buffer.getvalue(), listed)
    if len(packed.chunks) > MAX_CHUNKS:
        size = f"{len(packed.data) / 2**20:.0f} MiB packed"
        raise load.SpecError(_too_large(paths, folder, size))
    return packed


def _find_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the files to pack, sorted, without descending into ignored folders."""
    ignored: dict[pathlib.Path, pathspec.PathSpec[Any]] = {}
    """By the folders that were visited and have patterns."""
    visited: set[pathlib.Path] = set()

    def stays(path: pathlib.Path, ending: str = "") -> bool:
        return any(
            patterns.match_file(f"{path.relative_to(base)}{ending}")
            for base, patterns in ignored.items()
            if path.is_relative_to(base)
        )

    for root, folders, files in os.walk(folder, followlinks=True):
        base = pathlib.Path(root)
        if base.resolve() in visited:  # a link to a folder above
            folders.clear()
            continue
        visited.add(base.resolve())
        patterns = [*(_IGNORED if base == folder else ()), *_read_patterns(base)]
        if patterns:
            ignored[base] = pathspec.PathSpec.from_lines("gitignore", patterns)
        folders[:] = sorted(name for name in folders if not stays(base / name, "/"))
        for name in sorted(files):
            if not stays(base / name) and (base / name).is_file():
                yield base / name


def _read_patterns(folder: pathlib.Path) -> Sequence[str]:
    file = folder / IGNORE_FILE
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else ()


def _describe(path: pathlib.Path, name: str, size: int) -> tarfile.TarInfo:
    """Describe a file without what differs between machines: owner, time."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
    return info


def _too_large(paths: Sequence[pathlib.Path], folder: pathlib.Path, size: str) -> str:
    largest = sorted(paths, key=lambda path: path.stat().st_size, reverse=True)[:_SHOWN]
    shown = ", ".join(
        f"{path.relative_to(folder)} ({path.stat().st_size / 2**20:.1f} MiB)" for path in largest
    )
    return (
        f"{folder}: the files next to the job's file are too large to send with it ({size}; the"
        f" limit is {MAX_CHUNKS * CHUNK_BYTES / 2**20:.0f} MiB packed). Largest: {shown}. Keep data"
        f" in a claim or a bucket, and name files that the job does not need in {IGNORE_FILE}"
    )
