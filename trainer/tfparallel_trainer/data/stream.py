"""Examples that come one after the other: every process reads all of them and keeps its own part.

They come from a tf.data.Dataset or a Python generator, which each epoch begins again, and must be
the same in every process. A data set of batches stays as it is: each of its batches is one of all
ranks together. That costs each process the reading of the whole data set, and it is exact. Each
example is used once an epoch, whatever the number of ranks. A restart reads up to its place.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import arrays, batch_division, fingerprints, nest, passes


class StreamSource:
    """Batches from data sets of single examples, or of batches.

    The data set itself is looked at but not iterated over: `make` gives a new one of an epoch, with
    the same order everywhere. `function` names the user's data function in messages. The batches
    that the sample was taken from are those of the first epoch. A pass that is given up would fill
    its buffers for nothing, and TensorFlow warns of a cache that it leaves incomplete.
    """

    def __init__(
        self,
        data_set: tf.data.Dataset,
        make: Callable[[int], tf.data.Dataset],
        division: batch_division.BatchSharding,
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
        size = division.batch_size if self._is_batched else 1
        self.examples = cardinality * size if cardinality >= 0 else None
        """Number of examples in an epoch, if known. A batch counts as full."""
        self._sample: Any = None
        self._first: Iterable[Any] | None = None
        """The batches of epoch 0, once the sample has begun them."""
        if cardinality == 0:
            raise errors.UserCodeError(f"{function} returns an empty data set: return examples.")

    def sample(self) -> Any:
        if self._sample is None:
            batches = iter(self._batches(0, 0))
            first = next(batches, None)
            if first is None:
                raise errors.UserCodeError(
                    f"{self._function} returns a data set without examples: return some."
                )
            self._first = itertools.chain([first], batches)
            self._sample = nest.convert(lambda tensor: tensor[:1], nest.triple(first))
        return self._sample

    def epoch(self, number: int, start: int) -> Generator[batch_division.Batch, None, None]:
        first, self._first = self._first, None
        if first is not None and number == 0:
            return self._division.cut(first, start, fingerprints.of_batch)
        passed = start if self._is_batched else 0
        return self._division.cut(self._batches(number, start), passed, fingerprints.of_batch)

    def _batches(self, number: int, start: int) -> tf.data.Dataset:
        """The batches of an epoch, from an example on unless the user made the batches."""
        data = passes.in_order(self._make(number))
        return data if self._is_batched else data.skip(start).batch(self._division.batch_size)


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
        self,
        make: Callable[[int], Generator[Any, None, None]],
        division: batch_division.BatchSharding,
        function: str,
    ) -> None:
        self._make = make
        self._division = division
        self._function = function
        self._sample = self._stacked(list(itertools.islice(make(0), 1)))
        self.examples = None
        self.spec = batch_division.spec(self._sample)

    def sample(self) -> Any:
        return self._sample

    def epoch(self, number: int, start: int) -> Generator[batch_division.Batch, None, None]:
        batches = self._batches(self._make(number), start)
        return self._division.cut(batches, 0, fingerprints.of_batch)

    def _batches(self, examples: Generator[Any, None, None], start: int) -> Iterator[Any]:
        """The remaining examples, as whole batches."""
        with contextlib.closing(examples):
            remaining = itertools.islice(examples, start, None)
            while batch := list(itertools.islice(remaining, self._division.batch_size)):
                yield self._stacked(batch)

    def _stacked(self, examples: Sequence[Any]) -> Any:
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
