"""Examples that come one after the other: every process reads all of them and keeps its own part.

They come from a tf.data.Dataset or a Python generator, which each epoch begins again, and must be
the same in every process. A data set of batches stays as it is: each of its batches is one of all
ranks together. That costs each process the reading of the whole data set, and it is exact. Each
example is used once an epoch, whatever the number of ranks. A restart reads up to its place.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import arrays, batching, fingerprints, nest


class StreamSource:
    """Batches from data sets of single examples, or of batches.

    The data set itself is looked at but not iterated over: `make` gives a new one of an epoch, with
    the same order everywhere. `function` names the user's data function in messages.
    """

    def __init__(
        self,
        data_set: tf.data.Dataset,
        make: Callable[[int], tf.data.Dataset],
        division: batching.Division,
        function: str,
    ) -> None:
        self._make = make
        self._division = division
        self._function = function
        spec = _checked(data_set.element_spec, function)
        leaves = nest.leaves(spec)
        self._is_batched = all(leaf.shape.rank and leaf.shape[0] is None for leaf in leaves)
        if not self._is_batched:
            spec = nest.convert(lambda leaf: tf.TensorSpec((None, *leaf.shape), leaf.dtype), spec)
        self.spec = spec
        cardinality = int(data_set.cardinality().numpy())
        self.endless = cardinality == tf.data.INFINITE_CARDINALITY
        """Whether an epoch never ends."""
        self.examples = cardinality if cardinality >= 0 and not self._is_batched else None
        if cardinality == 0:
            raise errors.UserCodeError(f"{function} returns an empty data set: return examples.")

    def sample(self) -> Any:
        """The first example, with a leading axis of 1."""
        data = self._make(0)
        for whole in (data if self._is_batched else data.batch(1)).take(1):
            return nest.convert(lambda tensor: tensor[:1], nest.triple(whole))
        raise errors.UserCodeError(
            f"{self._function} returns a data set without examples: return some."
        )

    def epoch(self, number: int, start: int) -> Generator[batching.Batch, None, None]:
        """The batches of an epoch from position `start` on."""
        options = tf.data.Options()
        options.deterministic = True
        data = self._make(number).with_options(options)
        if self._is_batched:
            return self._cut(data, start)
        return self._cut(data.skip(start).batch(self._division.batch_size), 0)

    def _cut(self, batches: tf.data.Dataset, start: int) -> Generator[batching.Batch, None, None]:
        """The batches without those that hold the first `start` examples."""
        passed = 0
        for elements in batches:
            whole = nest.triple(elements)
            passed += batching.count(whole)
            if passed > start:
                yield self._division.cut(whole, fingerprints.of(_some(whole)))


def _some(whole: Any) -> Any:
    """Examples from all over a batch."""
    step = max(batching.count(whole) // fingerprints.EXAMPLES, 1)
    return nest.convert(lambda tensor: tensor[::step], whole)


def _checked(spec: Any, function: str) -> Any:
    if isinstance(spec, tuple) and not 0 < len(spec) < 4:
        raise errors.UserCodeError(
            f"{function} returns a data set of {spec}: let each element be x, (x, y) or "
            "(x, y, sample_weight), of one example or of a batch."
        )
    return arrays.dense_triple(spec, function)


class GeneratedSource:
    """Batches from generators of single examples, of which `make` gives a new one of an epoch."""

    def __init__(
        self, make: Callable[[int], Iterator[Any]], division: batching.Division, function: str
    ) -> None:
        self._make = make
        self._division = division
        self._function = function
        self._sample = self._joined(list(itertools.islice(make(0), 1)))
        self.examples = None
        self.spec = batching.spec(self._sample)

    def sample(self) -> Any:
        """The first example, with a leading axis of 1."""
        return self._sample

    def epoch(self, number: int, start: int) -> Generator[batching.Batch, None, None]:
        """The batches of an epoch from position `start` on."""
        return self._cut(self._make(number), start)

    def _cut(self, examples: Iterator[Any], start: int) -> Generator[batching.Batch, None, None]:
        with contextlib.ExitStack() as stack:
            if hasattr(examples, "close"):
                stack.callback(examples.close)
            rest = itertools.islice(examples, start, None)
            while whole := list(itertools.islice(rest, self._division.batch_size)):
                parts = [
                    self._joined(whole[part.start : part.stop]) if part else None
                    for part in self._division.parts(len(whole))
                ]
                some = whole[:: max(len(whole) // fingerprints.EXAMPLES, 1)]
                yield batching.Batch(len(whole), parts, fingerprints.of(some))

    def _joined(self, examples: Sequence[Any]) -> Any:
        """Stack examples, as (x, y, sample_weight)."""
        if not examples:
            raise errors.UserCodeError(f"{self._function} yields no examples: yield some.")
        for example in examples:
            is_tuple = isinstance(example, tuple) and len(example) in (1, 2, 3)
            if not is_tuple and not isinstance(example, np.ndarray | dict):
                raise errors.UserCodeError(
                    f"{self._function} yields {type(example).__name__}: yield x, (x, y) or "
                    "(x, y, sample_weight) of one example."
                )
        try:
            stacked = keras.tree.map_structure(lambda *rows: np.stack(rows), *examples)
        except ValueError as error:
            raise errors.UserCodeError(
                f"{self._function} yields examples of different shapes or structures ({error}): "
                "make them alike."
            ) from error
        return arrays.checked(stacked, self._function)
