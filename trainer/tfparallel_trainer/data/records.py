"""Records of TFRecord files by their number.

A record is 8 bytes of length, 4 of the length's checksum, the content, and 4 of its checksum. One
small read a record finds where all of them begin; then any can be read without the others.
"""

import array
import concurrent.futures
import os
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import fingerprints
from tfparallel_trainer.storage import address, fetch

_HEAD = struct.Struct("<QI")
_TAIL = 4
_GZIP = b"\x1f\x8b"
_DOWNLOADS = 8
"""Files that are copied from a bucket at the same time."""


class Index:
    """Where each record of some files stands.

    Raises:
        UserCodeError: there is no record, or a file is none of TFRecords.
        OSError: a file cannot be read.
    """

    def __init__(self, paths: Sequence[str], function: str) -> None:
        with concurrent.futures.ThreadPoolExecutor(_DOWNLOADS) as pool:
            self._paths = list(pool.map(_local, paths))
        file_places = [_records(path, function) for path in self._paths]
        count = sum(len(places) for places in file_places)
        if not count:
            raise errors.UserCodeError(
                f"{function} returns inputs.Records of {len(paths)} files without a record: name "
                "files that have some."
            )
        self._places = np.concatenate(file_places)
        self._files = np.repeat(np.arange(len(paths)), [len(places) for places in file_places])
        self.fingerprint = fingerprints.spread(self._places, count)
        """The same in every process whose files have records of the same lengths."""

    def __len__(self) -> int:
        return len(self._places)

    def fetch(self, number: tf.Tensor) -> tuple[tf.Tensor]:
        """The content of the record of a number, as a scalar string; it is traced."""
        content = tf.numpy_function(self._read, [number], tf.string, stateful=False)
        return (tf.ensure_shape(content, ()),)

    def _read(self, number: np.int64) -> bytes:
        path = self._paths[self._files[number]]
        offset, length = (int(value) for value in self._places[number])
        with open(path, "rb") as file:
            content = os.pread(file.fileno(), length, offset)
        if len(content) != length:
            raise OSError(f"{path} has become shorter while it is read")
        return content


def _local(path: str) -> str:
    """The file itself: of an address, a copy on the local disk."""
    return str(fetch.fetch(path)) if address.is_address(path) else path


def _records(path: str, function: str) -> npt.NDArray[np.int64]:
    """Offset and length of each record's content."""
    places = array.array("q")  # a list of tuples takes ten times the memory
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
            places.extend((offset + _HEAD.size, length))
            offset = end
    return np.array(places, np.int64).reshape(-1, 2)
