"""Examples that are found by their number and prepared one by one, several at once.

The order is that of arrays, and a process prepares only the examples of its own ranks. What is
random about an example follows from the seed, the epoch and its number, so it does not depend on
who prepares it or when.

A record of a TFRecord file is 8 bytes of length, 4 of the length's checksum, the content, and 4 of
its checksum. One small read a record finds where all of them begin; then any can be read without
the others.
"""

import array
import concurrent.futures
import dataclasses
import inspect
import os
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import batching, fingerprints, nest, order
from tfparallel_trainer.storage import address, fetch

_HEAD = struct.Struct("<QI")
_TAIL = 4
_GZIP = b"\x1f\x8b"
_DOWNLOADS = 8
"""Files that are copied from a bucket at the same time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Examples and how they are prepared."""

    length: int
    fetch: Callable[[tf.Tensor], tuple[Any, ...]]
    """Gives what stands for the example of a number (scalar int64); it is traced."""
    functions: Sequence[Callable[..., Any]]
    """What each goes through; the last gives (x, y) or (x, y, sample_weight)."""
    seed: int
    """What is random follows from it."""
    shuffled: bool
    """Whether each epoch has an order of its own."""
    fingerprint: fingerprints.Fingerprint
    """The same in every process that was given the same examples."""
    function: str
    """Name of the user's data function, for the messages."""


class RowsSource:
    """Batches of such examples; what a function gives instead of an example is a UserCodeError."""

    def __init__(self, rows: Rows, division: batching.Division) -> None:
        self._rows = rows
        self._division = division
        self._functions = [_traced(function) for function in rows.functions]
        with tf.device("CPU:0"):
            self._prepare = tf.function(self._row, autograph=False).get_concrete_function(
                tf.TensorSpec((), tf.int64),
                tf.TensorSpec((len(self._functions),), tf.int64),
            )
        self.examples = rows.length
        self.spec = nest.convert(
            lambda tensor: tf.TensorSpec((None, *tensor.shape), tensor.dtype),
            nest.triple(self._prepare.structured_outputs),
        )

    def sample(self) -> Any:
        """The first example, with a leading axis of 1."""
        with tf.device("CPU:0"):
            first = self._prepare(tf.zeros((), tf.int64), self._seeds(0))
            return nest.convert(lambda part: part[tf.newaxis], nest.triple(first))

    def epoch(self, number: int, start: int) -> Generator[batching.Batch, None, None]:
        """The batches of an epoch from position `start` on."""
        sizes = [len(part) for part in self._local_ranges(range(self._division.batch_size))]
        with tf.device("CPU:0"):
            examples = self._examples(number, start).batch(sum(sizes))
        return self._cut(iter(examples), start)

    def _cut(self, waiting: Iterator[Any], start: int) -> Generator[batching.Batch, None, None]:
        for positions in order.batches(self.examples, self._division.batch_size, start):
            ranges = self._local_ranges(positions)
            whole = nest.triple(next(waiting)) if any(ranges) else None
            parts: list[Any] = []
            first = 0
            for part in ranges:
                parts.append(batching.rows(whole, range(first, first + len(part))))
                first += len(part)
            yield batching.Batch(len(positions), parts, self._rows.fingerprint)

    def _local_ranges(self, positions: range) -> list[range]:
        """The positions of this process's ranks within those of a batch."""
        ranges = self._division.parts(len(positions))
        return [positions[part.start : part.stop] for part in ranges]

    def _examples(self, epoch: int, start: int) -> tf.data.Dataset:
        batches = order.batches(self.examples, self._division.batch_size, start)
        spans = [part for positions in batches for part in self._local_ranges(positions) if part]
        bounds = tf.constant([(part.start, part.stop) for part in spans], tf.int64, (len(spans), 2))
        options = tf.data.Options()
        options.deterministic = True
        number, seeds = tf.constant(epoch, tf.int64), self._seeds(epoch)
        return (
            tf.data.Dataset.from_tensor_slices(bounds)
            .flat_map(
                lambda bound: tf.data.Dataset.from_tensor_slices(self._numbers(bound, number))
            )
            .map(lambda row: self._prepare(row, seeds), num_parallel_calls=tf.data.AUTOTUNE)
            .with_options(options)
        )

    def _numbers(self, bound: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        """Which examples stand between two positions of an epoch's order."""
        positions = tf.range(bound[0], bound[1])
        if not self._rows.shuffled:
            return positions
        return order.numbers(positions, self.examples, self._rows.seed, epoch)

    def _seeds(self, epoch: int) -> tf.Tensor:
        """The first half of the seed of each function in an epoch; an example has the other."""
        return tf.random.stateless_uniform(
            (len(self._functions),),
            tf.constant([self._rows.seed, epoch], tf.int64),
            minval=None,
            maxval=None,
            dtype=tf.int64,
        )

    def _row(self, number: tf.Tensor, seeds: tf.Tensor) -> Any:
        example = self._rows.fetch(number)
        for function, first in zip(self._functions, tf.unstack(seeds), strict=True):
            result = function(*example, seed=tf.stack([first, number]))
            example = _checked(result, self._rows.function)
        return example


def _traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a part of a graph; it takes a seed, which not every user's function does."""
    traced = tf.function(function)
    if "seed" in inspect.signature(function).parameters:
        return lambda *parts, seed: traced(*parts, seed=seed)
    return lambda *parts, seed: traced(*parts)


def _checked(example: Any, function: str) -> tuple[Any, ...]:
    parts = (example,) if isinstance(example, tf.Tensor | dict) else example
    if not isinstance(parts, tuple) or len(parts) not in (1, 2, 3):
        size = f" of {len(parts)}" if isinstance(parts, (tuple, list)) else ""
        raise errors.UserCodeError(
            f"A function that examples of {function} go through returns "
            f"{type(example).__name__}{size}: return x, (x, y) or (x, y, sample_weight)."
        )
    return nest.example(nest.triple(parts))


class RecordIndex:
    """Where each record of some files stands; without any it is a UserCodeError."""

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
