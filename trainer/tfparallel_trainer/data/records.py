"""Records of TFRecord files by their number.

A record is 8 bytes of length, 4 of the length's checksum, the content, and 4 of its checksum. One
small read a record finds where all of them begin; then any can be read without the others.
"""

import os
import struct
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import marks

_HEAD = struct.Struct("<QI")
_TAIL = 4
_GZIP = b"\x1f\x8b"


class Index:
    """Where each record of some files stands.

    Raises:
        UserCodeError: there is no record, or a file is none of TFRecords.
        OSError: a file cannot be read.
    """

    def __init__(self, paths: Sequence[str], function: str) -> None:
        self._paths = list(paths)
        found = [
            (number, offset, length)
            for number, path in enumerate(paths)
            for offset, length in _records(path, function)
        ]
        if not found:
            raise errors.UserCodeError(
                f"{function} returns inputs.Records of {len(paths)} files without a record: name "
                "files that have some."
            )
        self._places = np.array(found, np.int64)
        self.mark = marks.spread(self._places, len(found))
        """The same in every process whose files have records of the same lengths."""

    def __len__(self) -> int:
        return len(self._places)

    def fetch(self, number: tf.Tensor) -> tuple[tf.Tensor]:
        """The content of the record of a number, as a scalar string; it is traced."""
        content = tf.numpy_function(self._read, [number], tf.string, stateful=False)
        return (tf.ensure_shape(content, ()),)

    def _read(self, number: np.int64) -> bytes:
        place, offset, length = (int(value) for value in self._places[number])
        with open(self._paths[place], "rb") as file:
            content = os.pread(file.fileno(), length, offset)
        if len(content) != length:
            raise OSError(f"{self._paths[place]} has become shorter while it is read")
        return content


def _records(path: str, function: str) -> list[tuple[int, int]]:
    """Offset and length of each record's content."""
    found = []
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = 0
        while offset < size:
            head = os.pread(file.fileno(), _HEAD.size, offset)
            length = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else size
            end = offset + _HEAD.size + length + _TAIL
            if end > size:
                packed = " It is compressed: unpack it." if head.startswith(_GZIP) else ""
                raise errors.UserCodeError(
                    f"{function} returns inputs.Records of {path}, which is no TFRecord file or is "
                    f"cut short (at byte {offset} of {size}).{packed}"
                )
            found.append((offset + _HEAD.size, length))
            offset = end
    return found
