"""A copy of a process's state in a file in memory.

The file has a header, the variables one after the other, and a description with the CRC-32 of each
block, as a checkpoint has it. The header is cleared before a copy begins, and written after the
description. So a copy that was cut off is none, and damaged memory shows.
"""

import dataclasses
import mmap
import os
import struct
import zlib
from typing import Any

import numpy as np
import pydantic
import tensorflow as tf

from tfparallel_trainer.checkpoint import files, shard
from tfparallel_trainer.comms import channels

_HEADER = struct.Struct("<8sQQI")
"""A mark, offset and length of the description, and its CRC-32."""
_MARK = b"TFPSTATE"
_DATA_OFFSET = 4096
_ALIGNMENT = 64
"""Bytes at whose multiples variables begin."""

_PartKey = tuple[str, shard.Box]
"""The key of a variable, and a part of it."""


class Description(pydantic.BaseModel, frozen=True, extra="forbid"):
    """What a copy holds."""

    number: int
    """Newer copies have higher numbers. All processes that copy together use the same one."""
    process: int
    """Number of the process whose state it is."""
    index: files.Index
    arrays: dict[str, files.Entry] = pydantic.Field(default_factory=dict)

    @property
    def full_index(self) -> files.Index:
        """The index, with its arrays."""
        return self.index.model_copy(update={"arrays": self.arrays})


class MemoryFile:
    """A file in memory, with at most one copy."""

    def __init__(self, descriptor: int) -> None:
        """Take an open file of the agent."""
        self._descriptor = descriptor

    def __str__(self) -> str:
        return "memory"

    def read(self) -> Description | None:
        """Return the description of the copy. None: the file has no complete copy."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        mark, offset, length, checksum = _HEADER.unpack(header)
        if mark != _MARK or offset + length > self.size:
            return None
        content = os.pread(self._descriptor, length, offset)
        if len(content) != length or zlib.crc32(content) != checksum:
            return None
        return Description.model_validate_json(content)

    def read_range(self, _name: str, offset: int, length: int) -> bytes:
        """Read a part of the copy; all of it lies in one file."""
        return os.pread(self._descriptor, length, offset)

    def send(self, channel: channels.Channel) -> None:
        """Send the copy to another process."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        _, offset, length, _ = _HEADER.unpack(header)
        channel.send(offset + length, lambda low, count: os.pread(self._descriptor, count, low))

    def receive(self, channel: channels.Channel) -> None:
        """Write the copy that another process sends. It is complete once all of it is here."""
        self.clear()
        header, offset = b"", 0
        for block in channel.receive():
            if not header:
                header = block[: _HEADER.size]
            written = block if offset else bytes(_HEADER.size) + block[_HEADER.size :]
            os.pwrite(self._descriptor, written, offset)
            offset += len(block)
        os.pwrite(self._descriptor, header, 0)

    def clear(self) -> None:
        """Make the copy incomplete."""
        if self.size:  # an empty one takes no memory
            os.pwrite(self._descriptor, bytes(_HEADER.size), 0)

    def free(self) -> None:
        """Give the memory back, and with it the copy."""
        os.ftruncate(self._descriptor, 0)

    def complete(self, description: Description, offset: int) -> None:
        """Describe the data in the file, whose end is the offset; from now on it is a copy."""
        content = description.model_dump_json().encode()
        os.pwrite(self._descriptor, content, offset)
        header = _HEADER.pack(_MARK, offset, len(content), zlib.crc32(content))
        os.pwrite(self._descriptor, header, 0)

    @property
    def size(self) -> int:
        """Bytes of memory that the file has."""
        return os.fstat(self._descriptor).st_size

    def reserve(self, size: int) -> None:
        """Take so many bytes of memory, and leave the copy as it is. OSError: there is no room."""
        os.posix_fallocate(self._descriptor, 0, size)

    def map(self, size: int) -> mmap.mmap:
        """Map so many bytes, which are reserved."""
        return mmap.mmap(self._descriptor, size)


class FileLayout:
    """Where the variables of a process lie in a file."""

    def __init__(self, state: shard.State) -> None:
        """Lay out a state; a ValueError if its parts of a variable overlap."""
        self.state = state
        self.sources: dict[_PartKey, shard.VariableShard] = {}
        """Parts that several ranks of this process have are copied once."""
        for key, entry in state.each():
            part_key = key, entry.box
            if entry.writes or part_key not in self.sources:
                self.sources[part_key] = entry
        self.offsets: dict[_PartKey, int] = {}
        self.end = _DATA_OFFSET
        for part_key, entry in self.sources.items():
            self.offsets[part_key] = self.end
            size = _dtype(entry).itemsize * entry.box.size
            self.end += -(-size // _ALIGNMENT) * _ALIGNMENT
        boxes: dict[str, list[shard.Box]] = {}
        for key, box in self.sources:
            boxes.setdefault(key, []).append(box)
        for key, parts in boxes.items():
            shard.uncovered(parts, state.wholes[key].shape)

    def arrays(self, memory: mmap.mmap) -> dict[_PartKey, shard.Copy]:
        """The variables as arrays in the memory of a file."""
        return {
            part_key: shard.Copy(
                np.ndarray(part_key[1].shape, _dtype(entry), memory, self.offsets[part_key])
            )
            for part_key, entry in self.sources.items()
        }

    def describe(self, memory: mmap.mmap) -> dict[str, files.Entry]:
        """What lies where in the memory of a file, with checksums."""
        entries: dict[str, files.Entry] = {}
        content = memoryview(memory)
        for (key, box), entry in self.sources.items():
            offset, itemsize = self.offsets[key, box], _dtype(entry).itemsize
            rows, low, sums = shard.rows_of(box.shape, itemsize), offset, []
            for block in box.blocks(rows):
                high = low + block.size * itemsize
                sums.append(zlib.crc32(content[low:high]))
                low = high
            piece = files.Piece(
                start=box.start, shape=box.shape, offset=offset, rows=rows, crc32s=tuple(sums)
            )
            earlier = entries[key].pieces if key in entries else ()
            entries[key] = files.describe(entry, (*earlier, piece))
        return entries


class MemoryCopy:
    """A copy of the state in one of the files, which is complete once it is sealed."""

    def __init__(
        self, file: MemoryFile, memory: mmap.mmap, layout: FileLayout, description: Description
    ) -> None:
        """Copy the variables now; the description has no arrays."""
        self._file, self._memory, self._layout = file, memory, layout
        self._description = description
        self._arrays = layout.arrays(memory)
        file.clear()
        for part_key, copy in self._arrays.items():
            shard.read_into(layout.sources[part_key].variable, copy.value)

    @property
    def state(self) -> shard.State:
        """The state with the copy in place of variables, which can be saved as a checkpoint."""
        shares = [
            {
                key: dataclasses.replace(entry, variable=self._arrays[key, entry.box])
                for key, entry in share.items()
            }
            for share in self._layout.state.shares
        ]
        return dataclasses.replace(self._layout.state, shares=shares)

    def seal(self) -> None:
        """Complete the copy. Training may change the variables meanwhile."""
        arrays = self._layout.describe(self._memory)
        description = self._description.model_copy(update={"arrays": arrays})
        self._file.complete(description, self._layout.end)


def _dtype(entry: shard.VariableShard) -> Any:
    return np.dtype(tf.as_dtype(entry.variable.dtype).as_numpy_dtype)
