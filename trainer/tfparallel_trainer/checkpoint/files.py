"""One checkpoint: a directory with an index and a part for each process that holds variables.

`part-00000.bin` holds the pieces of variables that the first process has, one after the other.
`part-00000.json` says where each lies in its variable, and has the CRC-32 of each block of its
rows. A part's index is written when all of its data is stored and has been read back. When all
parts together hold every element of every variable once, `directory.publish` writes `index.json`,
whose last line is the CRC-32 of its others, and makes the directory an entry. It is complete, and
if the storage damages it, the sums show it.
"""

import errno
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import pydantic
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import entries, shard
from tfparallel_trainer.storage import directory

FORMAT = 3
"""Older versions without sums would take an index with a sum for damage, and start from step 0."""

_UNSUMMED = 2
"""The previous format: its index may lack a sum, and is otherwise the same."""

_OLDER = (1,)
"""Formats that are not read."""

_SUMMED = re.compile(rb'(?s)(?P<content>\{.+),\n "crc32": (?P<sum>\d{1,10})\n\}')
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Errors of a missing file; any other error may be temporary."""
_OTHER_FORMAT = (
    "{} has format {}, and this version of the trainer reads formats {} and {}. Train on with the "
    "image that wrote it, or give trainer.checkpoint another claim or uri to begin from step 0."
)


class Piece(pydantic.BaseModel, frozen=True):
    """A part of a variable, stored in one file without gaps, row by row."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    offset: int
    """Offset in the file, in bytes."""
    rows: int
    """Rows in a block; the last one may have fewer."""
    crc32s: tuple[int, ...]
    """CRC-32 of each block."""
    part: int = 0
    """Number of the file."""

    @property
    def box(self) -> shard.Box:
        """Its position in the variable."""
        return shard.Box(self.start, self.shape)


class Entry(pydantic.BaseModel, frozen=True):
    """A variable of which a checkpoint, or a part of one, has pieces."""

    shape: tuple[int, ...]
    """Shape of the whole variable."""
    dtype: str
    label: str
    """The variable's path, for people."""
    pieces: tuple[Piece, ...]


class Position(pydantic.BaseModel, frozen=True, extra="forbid"):
    """How far training had come."""

    step: int
    """Optimizer steps made."""
    epoch: int
    """Epochs completed."""
    example: int
    """Examples used in the next epoch, in its order."""
    observer: str = ""
    """The state of the chief's observer (see `observer.Observer.memory`)."""


class Index(pydantic.BaseModel, frozen=True, extra="forbid"):
    """The content of a checkpoint: `index.json` and the indexes of all parts."""

    format: int = FORMAT
    attempt: int
    position: Position
    parts: tuple[int, ...]
    """CRC-32 of the index of each part."""
    arrays: dict[str, Entry] = pydantic.Field(default_factory=dict, exclude=True)


class _Part(pydantic.BaseModel, frozen=True):
    """Content of the index of a part."""

    arrays: dict[str, Entry]


class PieceSource(Protocol):
    """Where the data of a checkpoint lies: its directory, or memory."""

    def read_range(self, name: str, offset: int, length: int) -> bytes:
        """Read a part of a file; fewer than `length` bytes where the file ends."""


class DamagedError(Exception):
    """A checkpoint is not whole; the text says what is wrong."""


class UnreadableError(DamagedError):
    """The storage fails to return a file of a checkpoint, perhaps temporarily."""


def write_part(folder: directory.Directory, number: int, state: shard.State) -> int:
    """Write the part of a process, or raise OSError; read it back, or raise DamagedError.

    Returns the sum of its index.
    """
    written: dict[str, list[Piece]] = {}
    arrays: dict[str, Entry] = {}
    end = 0
    with folder.writer(data_file(number)) as data:
        for key, weight_shard in state.each():
            if not weight_shard.writes:
                continue
            piece, end = _write(data, weight_shard, number, end)
            written.setdefault(key, []).append(piece)
            arrays[key] = describe(weight_shard, tuple(written[key]))
    verify(folder, arrays, number)
    content = _Part(arrays=arrays).model_dump_json().encode()
    with folder.writer(_list(number)) as listing:
        listing.write(content)
    return zlib.crc32(content)


def describe(weight_shard: shard.VariableShard, pieces: tuple[Piece, ...]) -> Entry:
    """Describe the variable of a shard, of which these pieces are stored."""
    return Entry(
        shape=weight_shard.whole.shape,
        dtype=tf.as_dtype(weight_shard.variable.dtype).name,
        label=weight_shard.whole.label,
        pieces=pieces,
    )


def complete(
    folder: directory.Directory,
    parts: int,
    attempt: int,
    at: Position,
    wholes: Mapping[str, shard.FullVariable],
) -> bytes:
    """The content of `index.json` for a checkpoint of these variables whose parts are written.

    A missing part, or an element in no part or in two, is a DamagedError.
    """
    sums = tuple(zlib.crc32(_content(folder, number, parts)) for number in range(parts))
    index = Index(attempt=attempt, position=at, parts=sums)
    arrays = _gather(folder, index)
    for key, whole in wholes.items():
        if key not in arrays:
            raise DamagedError(f"no part of {folder} holds {key} ({whole.label})")
        entry = arrays[key]
        if entry.shape != whole.shape:
            raise DamagedError(f"{key} ({entry.label}) was written as one of shape {entry.shape}")
        try:
            missing = shard.uncovered([piece.box for piece in entry.pieces], entry.shape)
        except ValueError as error:
            raise DamagedError(f"{key} ({entry.label}): {error}") from error
        if missing:
            raise DamagedError(f"{missing} elements of {key} ({entry.label}) are in no part")
    content = index.model_dump_json(indent=1).encode().removesuffix(b"\n}")
    return content + b',\n "crc32": %d\n}' % zlib.crc32(content)


def read_index(folder: directory.Directory) -> Index:
    """Read what a checkpoint holds, without its arrays.

    Raises:
        DamagedError: there is no index that can be read, or a part is missing.
        BadConfigurationError: another version of the trainer wrote it, in another format.
    """
    path = f"{folder}/{directory.INDEX}"
    try:
        index = _parse_index(folder, folder.read(directory.INDEX))
    except OSError as error:
        raise _unread(path, error) from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if entries.is_named(folder) and entries.step_of(folder) != index.position.step:
        raise DamagedError(f"{path} has step {index.position.step}, which is not that of its name")
    return index.model_copy(update={"arrays": _gather(folder, index)})


def verify(folder: directory.Directory, arrays: Mapping[str, Entry], part: int) -> None:
    """Read all data of a part, or raise DamagedError."""
    for key, entry in arrays.items():
        for piece in entry.pieces:
            if piece.part == part:
                for _ in _blocks(folder, key, entry, piece, piece.box):
                    pass


def read(folder: directory.Directory, index: Index) -> Iterator[tuple[str, Any]]:
    """Yield each key and its array, one at a time, checked as `blocks` are."""
    for key, entry in index.arrays.items():
        array = np.empty(entry.shape, tf.as_dtype(entry.dtype).as_numpy_dtype)
        for box, block in blocks(folder, index, key, shard.box((), entry.shape)):
            array[box.slices] = block
        yield key, array


def blocks(
    source: PieceSource, index: Index, key: str, box: shard.Box
) -> Iterator[tuple[shard.Box, Any]]:
    """Yield a part of a variable in checked blocks, each with its position.

    Only the requested rows are read; a block is valid until the next one. If the part is missing,
    or differs from its sums, it is a DamagedError.
    """
    entry = index.arrays[key]
    left = box.size
    for piece in entry.pieces:
        common = piece.box.overlap(box)
        if common is None:
            continue
        left -= common.size
        yield from _blocks(source, key, entry, piece, common)
    if left:
        raise DamagedError(f"{source} lacks {left} elements of {key} ({entry.label})")


def _write(
    data: directory.Writer, weight_shard: shard.VariableShard, part: int, offset: int
) -> tuple[Piece, int]:
    """Append a shard to a file at an offset; returns its entry and the new end of the file."""
    sums, box, end = [], weight_shard.box, offset
    for block in shard.blocks(weight_shard.variable):
        content = block.tobytes()
        sums.append(zlib.crc32(content))
        data.write(content)
        end += len(content)
    rows = shard.rows_of(box.shape, tf.as_dtype(weight_shard.variable.dtype).size)
    piece = Piece(
        start=box.start, shape=box.shape, offset=offset, rows=rows, crc32s=tuple(sums), part=part
    )
    return piece, end


def _blocks(
    source: PieceSource, key: str, entry: Entry, piece: Piece, box: shard.Box
) -> Iterator[tuple[shard.Box, Any]]:
    """Give the box of a piece, which it lies in."""
    dtype = np.dtype(tf.as_dtype(entry.dtype).as_numpy_dtype)
    path = f"{source}/{data_file(piece.part)}"
    offset = piece.offset
    for block, checksum in zip(piece.box.blocks(piece.rows), piece.crc32s, strict=True):
        size = block.size * dtype.itemsize
        common = block.overlap(box)
        if common is not None:
            try:
                content = source.read_range(data_file(piece.part), offset, size)
            except OSError as error:
                raise _unread(path, error) from error
            if len(content) != size or zlib.crc32(content) != checksum:
                raise DamagedError(f"{path} is damaged at {key} ({entry.label})")
            array: Any = np.frombuffer(content, dtype).reshape(block.shape)
            yield common, array[(*common.within(block), ...)]  # a scalar becomes an array, too
        offset += size


def _gather(folder: directory.Directory, index: Index) -> dict[str, Entry]:
    """Combine the indexes of all parts, which must match the checkpoint's index."""
    arrays: dict[str, Entry] = {}
    for number, checksum in enumerate(index.parts):
        content = _content(folder, number, len(index.parts))
        if zlib.crc32(content) != checksum:
            raise DamagedError(f"{folder}/{_list(number)} is damaged")
        try:
            part = _Part.model_validate_json(content)
        except ValueError as error:
            raise DamagedError(f"{folder}/{_list(number)} cannot be read: {error}") from error
        for key, entry in part.arrays.items():
            earlier = arrays.get(key, entry.model_copy(update={"pieces": ()}))
            if (earlier.shape, earlier.dtype) != (entry.shape, entry.dtype):
                raise DamagedError(f"the parts of {folder} differ in {key} ({entry.label})")
            arrays[key] = earlier.model_copy(update={"pieces": earlier.pieces + entry.pieces})
    return arrays


def _content(folder: directory.Directory, number: int, parts: int) -> bytes:
    try:
        if not folder.has(data_file(number)):
            path = f"{folder}/{data_file(number)}"
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return folder.read(_list(number))
    except OSError as error:
        raise _unread(f"part {number + 1} of {parts}", error) from error


def _parse_index(folder: directory.Directory, content: bytes) -> Index:
    """Check the sum of an index and its format; raises ValueError, or as `read_index`."""
    match = _SUMMED.fullmatch(content)
    if match is not None:
        if zlib.crc32(match["content"]) != int(match["sum"]):
            raise ValueError("it differs from its sum")
        content = match["content"] + b"\n}"
    values = json.loads(content)
    written = values.get("format") if isinstance(values, dict) else None
    if isinstance(written, bool):  # True is 1
        raise ValueError(f"it has format {written}")
    if match is None and written not in (*_OLDER, _UNSUMMED):
        raise ValueError(f"it has format {written} and no sum")
    if written not in (_UNSUMMED, FORMAT):
        raise errors.BadConfigurationError(_OTHER_FORMAT.format(folder, written, _UNSUMMED, FORMAT))
    return Index.model_validate(values)


def _unread(what: str, error: OSError) -> DamagedError:
    """Distinguish a missing file from a storage that fails to return it."""
    if error.errno in _MISSING:
        return DamagedError(f"{what} is missing: {error}")
    return UnreadableError(f"{what} cannot be read: {error}")


def data_file(number: int) -> str:
    """Return the name of the file with the data of a part."""
    return f"part-{number:05}.bin"


def _list(number: int) -> str:
    return f"part-{number:05}.json"
