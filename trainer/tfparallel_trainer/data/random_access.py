"""Examples that are found by their number and prepared one by one, several at once.

The order is that of arrays, and a process prepares only the examples of its own ranks. What is
random about one follows from the seed, the epoch and its number, not from who prepares it.

A record of a TFRecord file is 8 bytes of length, 4 of the length's checksum, the content, and 4 of
its checksum. One small read a record finds where all begin; then any is read without others.
"""

import array
import concurrent.futures
import dataclasses
import inspect
import os
import pathlib
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import batch_division, fingerprints, nest, order, passes
from tfparallel_trainer.storage import fetch

_HEAD = struct.Struct("<QI")
_TAIL = 4
_GZIP = b"\x1f\x8b"
_DOWNLOADS = 8
"""Number of files that are copied from a bucket at the same time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Examples:
    """Stored examples with numbers from 0."""

    count: int
    fetch: Callable[[tf.Tensor], tuple[Any, ...]]
    """Returns the stored form of the example with a number (scalar int64). It is traced."""
    fingerprint: fingerprints.Fingerprint
    """The same in every process that received the same examples."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Examples and how they are prepared."""

    examples: Examples
    functions: Sequence[Callable[..., Any]]
    """Functions that each example passes through.

    The last one returns (x, y) or (x, y, sample_weight).
    """
    seed: int
    """The seed of all random numbers."""
    shuffled: bool
    """Whether each epoch has its own order."""
    function: str
    """Name of the user's data function, for the messages."""


class RowsSource:
    """Batches of such examples; what a function gives instead of an example is a UserCodeError."""

    def __init__(self, rows: Rows, division: batch_division.BatchSharding) -> None:
        self._rows = rows
        self._division = division
        self._functions = [_traced(function) for function in rows.functions]
        with tf.device("CPU:0"):
            self._prepare = tf.function(self._row, autograph=False).get_concrete_function(
                tf.TensorSpec((), tf.int64), tf.TensorSpec((len(self._functions),), tf.int64)
            )
        self.examples = rows.examples.count
        self.spec = nest.convert(
            lambda tensor: tf.TensorSpec((None, *tensor.shape), tensor.dtype),
            nest.triple(self._prepare.structured_outputs),
        )

    def sample(self) -> Any:
        with tf.device("CPU:0"):
            first = self._prepare(tf.zeros((), tf.int64), self._seeds(0))
            return nest.convert(lambda part: part[tf.newaxis], nest.triple(first))

    def epoch(self, number: int, start: int) -> Generator[batch_division.Batch, None, None]:
        sizes = [len(part) for part in self._division.parts(range(self._division.batch_size))]
        with tf.device("CPU:0"):
            examples = self._examples(number, start).batch(sum(sizes))
        return self._cut(iter(examples), start)

    def _cut(
        self, pending: Iterator[Any], start: int
    ) -> Generator[batch_division.Batch, None, None]:
        for positions in order.batches(self.examples, self._division.batch_size, start):
            ranges = self._division.parts(positions)
            whole = nest.triple(next(pending)) if any(ranges) else None
            parts: list[Any] = []
            first = 0
            for part in ranges:
                parts.append(batch_division.rows(whole, range(first, first + len(part))))
                first += len(part)
            yield batch_division.Batch(len(positions), parts, self._rows.examples.fingerprint)

    def _examples(self, epoch: int, start: int) -> tf.data.Dataset:
        batches = order.batches(self.examples, self._division.batch_size, start)
        spans = [part for batch in batches for part in self._division.parts(batch) if part]
        bounds = tf.constant([(part.start, part.stop) for part in spans], tf.int64, (len(spans), 2))
        number, seeds = tf.constant(epoch, tf.int64), self._seeds(epoch)
        numbers = tf.data.Dataset.from_tensor_slices(bounds).flat_map(
            lambda bound: tf.data.Dataset.from_tensor_slices(self._numbers(bound, number))
        )
        return passes.in_order(
            numbers.map(lambda row: self._prepare(row, seeds), num_parallel_calls=tf.data.AUTOTUNE)
        )

    def _numbers(self, bound: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        """The examples between two positions of an epoch's order."""
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
        example = self._rows.examples.fetch(number)
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


def of_arrays(arrays: Any) -> Examples:
    """The rows of arrays (x, y, sample_weight), each with as many parts as are there."""
    with tf.device("CPU:0"):
        tensors = nest.convert(tf.convert_to_tensor, nest.example(arrays))
    count = batch_division.count(arrays)
    return Examples(
        count,
        lambda number: nest.convert(lambda tensor: tf.gather(tensor, number), tensors),
        fingerprints.spread(arrays, count),
    )


def of_records(paths: Sequence[str], function: str) -> Examples:
    """The records of files or addresses, each a scalar string; none at all is a UserCodeError."""
    with concurrent.futures.ThreadPoolExecutor(_DOWNLOADS) as pool:
        local = list(pool.map(fetch.local, paths))
    in_files = [_records(path, function) for path in local]
    counts = [len(records) for records in in_files]
    if not sum(counts):
        raise errors.UserCodeError(
            f"{function} returns inputs.Records of {len(paths)} files without a record: name "
            "files that have some."
        )
    places = np.concatenate(in_files)
    files = np.repeat(np.arange(len(local)), counts)

    def read(number: np.int64) -> bytes:
        path = local[files[number]]
        offset, length = (int(value) for value in places[number])
        with path.open("rb") as file:
            content = os.pread(file.fileno(), length, offset)
        if len(content) != length:
            raise OSError(f"{path} has become shorter while it is read")
        return content

    def fetch_record(number: tf.Tensor) -> tuple[tf.Tensor]:
        content = tf.numpy_function(read, [number], tf.string, stateful=False)
        return (tf.ensure_shape(content, ()),)

    # Files with records of the same lengths count as the same.
    return Examples(len(places), fetch_record, fingerprints.spread(places, len(places)))


def _records(path: pathlib.Path, function: str) -> npt.NDArray[np.int64]:
    """Offset and length of each record's content."""
    places = array.array("q")  # a list of tuples takes ten times the memory
    with path.open("rb") as file:
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
