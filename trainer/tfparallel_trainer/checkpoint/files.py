"""One checkpoint on disk: a folder with `index.json` and `data.bin`.

`data.bin` holds the arrays one after the other; the index gives for each key its offset, shape,
type, CRC-32 and label. A folder gets its name only when all of it is on the disk and has been read
back, so a folder with the right name is whole unless the disk damaged it, which the sums show.
"""

import os
import pathlib
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pydantic
import tensorflow as tf

_INDEX = "index.json"
_DATA = "data.bin"


class Entry(pydantic.BaseModel, frozen=True):
    """Where an array lies in `data.bin`."""

    offset: int
    size: int
    """Bytes."""
    shape: tuple[int, ...]
    dtype: str
    crc32: int
    label: str
    """The variable's path, for people."""


class Position(pydantic.BaseModel, frozen=True):
    """How far training had come."""

    step: int
    """Optimizer steps made."""
    epoch: int
    """Epochs completed."""
    example: int
    """Examples used of the epoch after those, in its order."""


class Index(pydantic.BaseModel, frozen=True):
    """Content of `index.json`."""

    format: int = 1
    attempt: int
    position: Position
    arrays: dict[str, Entry]


class DamagedError(Exception):
    """A checkpoint is not whole; the text says what is wrong."""


def write(folder: pathlib.Path, variables: Mapping[str, Any], attempt: int, at: Position) -> None:
    """Write variables into a new folder, flush it to the disk and read it back.

    Raises:
        OSError: the disk does not take it.
        DamagedError: what was read back differs.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    entries: dict[str, Entry] = {}
    with (folder / _DATA).open("wb") as data:
        for key, variable in variables.items():
            array = np.array(variable.value.numpy(), order="C")  # a scalar stays one
            content = array.tobytes()
            entries[key] = Entry(
                offset=data.tell(),
                size=len(content),
                shape=array.shape,
                dtype=array.dtype.name,
                crc32=zlib.crc32(content),
                label=variable.path,
            )
            data.write(content)
        _flush(data)
    index = Index(attempt=attempt, position=at, arrays=entries)
    with (folder / _INDEX).open("w", encoding="utf-8") as file:
        file.write(index.model_dump_json(indent=1))
        _flush(file)
    for _ in read(folder, read_index(folder)):
        pass


def read_index(folder: pathlib.Path) -> Index:
    """Read what a checkpoint holds, without its arrays.

    Raises:
        DamagedError: there is no index that can be read.
    """
    try:
        return Index.model_validate_json((folder / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError(f"{folder / _INDEX} cannot be read: {error}") from error


def read(folder: pathlib.Path, index: Index) -> Iterator[tuple[str, Any]]:
    """Give each key and its array, one at a time, checked.

    Raises:
        DamagedError: an array is missing or differs from its sum.
    """
    try:
        with (folder / _DATA).open("rb") as data:
            for key, entry in index.arrays.items():
                data.seek(entry.offset)
                content = data.read(entry.size)
                if len(content) != entry.size or zlib.crc32(content) != entry.crc32:
                    raise DamagedError(f"{folder / _DATA} is damaged at {key} ({entry.label})")
                dtype = tf.as_dtype(entry.dtype).as_numpy_dtype
                yield key, np.frombuffer(content, dtype).reshape(entry.shape)
    except OSError as error:
        raise DamagedError(f"{folder / _DATA} cannot be read: {error}") from error


def sync_folder(folder: pathlib.Path) -> None:
    """Make the names in a folder last over a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a small file so that readers see all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        _flush(file)
    draft.replace(path)
    sync_folder(path.parent)


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
