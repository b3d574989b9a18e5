"""Examples from a tf.data.Dataset: every process reads all of them and keeps its own part.

A data set of batches stays as it is: each of its batches is one of all ranks together. That costs
each process the reading of the whole data set, and it is exact. Each example is used once an epoch,
whatever the number of ranks. A restart finds its place by skipping.
"""

from collections.abc import Callable, Generator
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import feed, fingerprints, nest


class StreamFeed:
    """Batches from data sets of single examples, or of batches.

    Args:
        data_set: a data set, which is looked at but not iterated over.
        make: gives a new data set of an epoch, with the same order everywhere.
        division: how batches are cut.
        function: name of the user's data function, for the messages.
    """

    def __init__(
        self,
        data_set: tf.data.Dataset,
        make: Callable[[int], tf.data.Dataset],
        division: feed.Division,
        function: str,
    ) -> None:
        self._make = make
        self._division = division
        self._function = function
        self._spec = _checked(data_set.element_spec, function)
        leaves = nest.leaves(self._spec)
        self._is_batched = all(leaf.shape.rank and leaf.shape[0] is None for leaf in leaves)
        cardinality = int(data_set.cardinality().numpy())
        self.endless = cardinality == tf.data.INFINITE_CARDINALITY
        """Whether an epoch never ends."""
        self._length = cardinality if cardinality >= 0 and not self._is_batched else None
        if cardinality == 0:
            raise errors.UserCodeError(f"{function} returns an empty data set: return examples.")

    @property
    def examples(self) -> int | None:
        """Examples in an epoch, where the data set knows; one of batches does not."""
        return self._length

    @property
    def spec(self) -> Any:
        """The structure of a part, as tf.TensorSpec [None, …]."""
        if self._is_batched:
            return self._spec
        return nest.convert(lambda spec: tf.TensorSpec((None, *spec.shape), spec.dtype), self._spec)

    def sample(self) -> Any:
        """The first example, with a leading axis of 1."""
        data = self._make(0)
        for whole in (data if self._is_batched else data.batch(1)).take(1):
            return nest.convert(lambda tensor: tensor[:1], nest.triple(whole))
        raise errors.UserCodeError(
            f"{self._function} returns a data set without examples: return some."
        )

    def epoch(self, number: int, start: int) -> Generator[feed.Batch, None, None]:
        """The batches of an epoch from position `start` on."""
        options = tf.data.Options()
        options.deterministic = True
        data = self._make(number).with_options(options)
        if self._is_batched:
            return self._cut(data, start)
        return self._cut(data.skip(start).batch(self._division.batch_size), 0)

    def _cut(self, batches: tf.data.Dataset, start: int) -> Generator[feed.Batch, None, None]:
        """The batches without those that hold the first `start` examples."""
        passed = 0
        for elements in batches:
            whole = nest.triple(elements)
            passed += feed.count(whole)
            if passed > start:
                yield self._division.cut(whole, fingerprints.of(_some(whole)))


def _some(whole: Any) -> Any:
    """Examples from all over a batch."""
    step = max(feed.count(whole) // fingerprints.EXAMPLES, 1)
    return nest.convert(lambda tensor: tensor[::step], whole)


def _checked(spec: Any, function: str) -> Any:
    if isinstance(spec, tuple) and not 0 < len(spec) < 4:
        raise errors.UserCodeError(
            f"{function} returns a data set of {spec}: let each element be x, (x, y) or "
            "(x, y, sample_weight), of one example or of a batch."
        )
    return nest.triple(spec)
