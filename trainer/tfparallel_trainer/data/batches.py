"""Batched data, as Keras' fit takes it: data sets, generators and PyDatasets.

Such a batch is the batch of all replicas together. Every process reads all batches, and keeps its
own part of each. So all processes must read the same batches; they compare the first one.
"""

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import arrays, batch_division, nest, order, passes


@dataclasses.dataclass(frozen=True, slots=True)
class Batches:
    """A source of batches."""

    name: str
    """Name of the argument, for messages."""
    start_pass: Callable[[int], Iterator[Any]]
    """Begins the pass of this number, with batches as the user gives them."""
    skip: Callable[[Iterator[Any] | None], None]
    """Skips a pass, which may have begun. Later passes are the same as without the skip."""
    count: int | None
    """Number of batches in a pass, if known."""
    spec: Any
    """Structure of a batch, as tf.TensorSpec; None: that which the first two have in common."""
    once: bool = False
    """Whether the source has only one pass."""
    endless: bool = False
    """Whether a pass never ends."""


def opened(data: Any, name: str, shuffle_seed: int | None) -> Batches | None:
    """The batches of an argument, with those of a PyDataset shuffled by the seed; None: it has
    none."""
    if isinstance(data, tf.data.Dataset):
        return _of_data_set(data, name)
    if isinstance(data, keras.utils.PyDataset):
        return of_py_dataset(data, name, shuffle_seed)
    if isinstance(data, Iterator):
        return Batches(name, lambda _: data, lambda _: None, None, None, once=True)
    return None


def _of_data_set(data_set: tf.data.Dataset, name: str) -> Batches:
    data = passes.in_order(data_set)
    cardinality = int(data.cardinality().numpy())
    return Batches(
        name,
        lambda _: iter(data),
        lambda begun: passes.skip(data, begun),
        cardinality if cardinality >= 0 else None,
        data.element_spec,
        endless=cardinality == tf.data.INFINITE_CARDINALITY,
    )


def of_py_dataset(py_dataset: Any, name: str, seed: int | None) -> Batches:
    """Its batches, shuffled for each pass by the seed; None keeps their order."""
    count = py_dataset.num_batches

    def start_pass(number: int) -> Iterator[Any]:
        numbers: Iterable[int] = itertools.count()
        if count is not None:
            numbers = range(count)
            if seed is not None:
                numbers = order.shuffled(range(count), count, seed, number).tolist()
        py_dataset.on_epoch_begin()
        for index in numbers:
            yield py_dataset[index]
        py_dataset.on_epoch_end()

    def skip(begun: Iterator[Any] | None) -> None:
        if begun is None:
            py_dataset.on_epoch_begin()
        py_dataset.on_epoch_end()

    return Batches(name, start_pass, skip, count, None, endless=count is None)


class BatchedDataset:
    """Batched data (a `batch_division.Shardable`), checked on its first batch.

    `steps` make an epoch; None: a pass. `class_weight` gives each example the weight of its class.
    With `restarts` each epoch begins a new pass, also with `steps`.
    """

    def __init__(
        self,
        batches: Batches,
        steps: int | None,
        class_weight: Mapping[int, float] | None,
        *,
        first_epoch: int = 0,
        restarts: bool = False,
    ) -> None:
        if batches.endless and steps is None:
            argument = "validation_steps" if restarts else "steps_per_epoch"
            raise errors.UserCodeError(f"{batches.name} never ends: give {argument}.")
        self._batches = batches
        self._steps = steps
        self._class_weight = class_weight
        self._restarts = restarts
        self._pass: Iterator[Any] | None = None
        self._passed_batches = 0
        self._coming = first_epoch
        begun = batches.start_pass(first_epoch)
        first = next(begun, None)
        if first is None:
            raise errors.UserCodeError(f"{batches.name} gives no batches: let it give some.")
        read = [first]
        if batches.spec is None and batches.count != 1:  # Keras sees from two what changes
            read += itertools.islice(begun, 1)
        self._begun: Iterator[Any] | None = None
        if batches.once or not restarts:  # two passes at a time could change each other's order
            self._begun = itertools.chain(read, begun)
        self._first = self._triple(first)
        self.spec = self._described([self._triple(batch) for batch in read])

    @property
    def batch_size(self) -> int:
        """Examples in the first batch."""
        return batch_division.count(self._first)

    @property
    def steps(self) -> int | None:
        """Number of batches in an epoch, if known."""
        count = self._batches.count
        return count if self._steps is None else min(self._steps, count or self._steps)

    @property
    def digest(self) -> int:
        """A fingerprint of the first batch."""
        checksum = 0
        for leaf in map(np.asarray, nest.leaves(self._first)):
            content = leaf.astype("S") if leaf.dtype == object else leaf
            checksum = zlib.crc32(np.ascontiguousarray(content).tobytes(), checksum)
        return checksum

    def divided(self, division: batch_division.BatchSharding) -> batch_division.BatchSource:
        """Divide each batch over the ranks."""
        return _Source(self, division)

    def sample(self) -> Any:
        """The first example."""
        return nest.convert(lambda leaf: leaf[:1], self._first)

    def epoch(self, number: int) -> Iterator[Any]:
        """The whole batches of an epoch.

        After a restart, the batches of earlier epochs are skipped.
        """
        if not self._restarts:
            self._leave_out(number - self._coming)
            self._coming = number + 1
        return (self._fitting(self._triple(batch)) for batch in self._epoch(number))

    def _epoch(self, number: int) -> Iterator[Any]:
        """The batches of the coming epoch as the user gives them."""
        if self._makes_passes:
            yield from self._start_pass(number)
            return
        if self._pass is None:
            self._pass = self._start_pass(number)
        before = self._passed_batches
        for batch in itertools.islice(self._pass, self._steps):
            self._passed_batches += 1
            yield batch
        if self._passed_batches == 0:
            raise errors.UserCodeError(
                f"{self._batches.name} has no more batches for epoch {number + 1}: give "
                "steps_per_epoch and enough batches, or a keras.utils.PyDataset."
            )
        has_ended = self._steps is None or self._passed_batches - before < self._steps
        if has_ended or self._restarts or self._passed_batches == self._batches.count:
            self._end_pass()

    @property
    def _makes_passes(self) -> bool:
        return self._steps is None and not self._batches.once

    def _leave_out(self, epochs: int) -> None:
        """Continue with the epoch after so many others, without reading their whole passes."""
        count = self._batches.count
        if self._makes_passes:
            in_pass = 1
        elif self._steps is not None and count is not None:
            in_pass = -(-count // self._steps)
        else:
            in_pass = 1 + max(epochs, 0)  # nobody knows where passes end
        skipped = epochs // in_pass
        for _ in range(skipped):
            self._batches.skip(self._take_begun())
        for number in range(self._coming + skipped * in_pass, self._coming + epochs):
            for _ in self._epoch(number):
                pass

    def _take_begun(self) -> Iterator[Any] | None:
        """The remaining batches of the pass that `__init__` has begun, at the first call only."""
        begun, self._begun = self._begun, None
        return begun

    def _start_pass(self, number: int) -> Iterator[Any]:
        return self._take_begun() or self._batches.start_pass(number)

    def _end_pass(self) -> None:
        self._passed_batches = 0
        if self._pass is not None and not self._batches.once:
            next(self._pass, None)  # a PyDataset is told of the end
            self._pass = None

    def _described(self, read: Sequence[Any]) -> Any:
        """The structure of the batches, given those that have been read."""
        if self._batches.spec is None:
            columns = zip(*(self._leaves_like(batch, self._first) for batch in read), strict=True)
            return nest.packed(self._first, [_spec_of(column) for column in columns])
        weight = None if self._first[2] is None else _spec_of([self._first[2]])
        triple = (*nest.triple(self._batches.spec)[:2], weight)
        return batch_division.spec(triple)

    def _fitting(self, batch: Any) -> Any:
        """The batch in the types of the first one."""
        pairs = zip(self._leaves_like(batch, self.spec), nest.leaves(self.spec), strict=True)
        return nest.packed(batch, [_cast(self._batches.name, *pair) for pair in pairs])

    def _leaves_like(self, batch: Any, other: Any) -> list[Any]:
        """The arrays of a batch, which must be as many as those of the other one."""
        leaves, expected = nest.leaves(batch), len(nest.leaves(other))
        if len(leaves) != expected:
            raise errors.UserCodeError(
                f"{self._batches.name} gives a batch of {len(leaves)} arrays, and the first one "
                f"has {expected}. Let all be (x, y), or all (x, y, sample_weight), with as many "
                "inputs and targets."
            )
        return leaves

    def _triple(self, batch: Any) -> Any:
        triple = arrays.dense_triple(batch, name := self._batches.name)
        leaves = nest.leaves(triple)
        if not leaves or not all(hasattr(leaf, "shape") for leaf in leaves):
            raise errors.UserCodeError(
                f"{name} gives batches of {type(batch).__name__}: let each be x, (x, y) or "
                "(x, y, sample_weight)."
            )
        if any(len(leaf.shape) == 0 for leaf in leaves):
            raise errors.UserCodeError(
                f"{name} gives single examples: batch them, as in data.batch(32)."
            )
        x, y, weight = triple
        if weight is None and self._class_weight is not None:
            weight = arrays.weights_of_classes(y, self._class_weight)
        return x, y, weight


class _Source:
    """Each batch, divided over the ranks."""

    def __init__(self, whole: BatchedDataset, division: batch_division.BatchSharding) -> None:
        self._whole = whole
        self._division = division
        steps = whole.steps
        self.examples = None if steps is None else steps * division.batch_size
        """The size of full batches, if known."""
        self.spec = whole.spec
        self.sample = whole.sample

    def epoch(self, number: int, start: int) -> Generator[batch_division.Batch, None, None]:
        yield from self._division.cut(self._whole.epoch(number), start)


def _cast(name: str, leaf: Any, spec: tf.TensorSpec) -> Any:
    """Convert an array of a batch to the type of the first batch."""
    if not spec.shape.is_compatible_with(leaf.shape):
        raise errors.UserCodeError(
            f"{name} gives an array of shape {tuple(leaf.shape)} where the first two batches have "
            f"{tuple(spec.shape)}, None being what changes. Let the first two batches differ where "
            "later ones do, pad all alike, or give a tf.data.Dataset with None in its element_spec."
        )
    kind = spec.dtype.as_numpy_dtype
    if tf.as_dtype(leaf.dtype) == spec.dtype:
        return leaf
    array = np.asarray(leaf)
    if not np.can_cast(array.dtype, kind, "same_kind"):
        raise errors.UserCodeError(
            f"{name} gives an array of {array.dtype} where the first batch has {spec.dtype.name}: "
            "give all batches the same type."
        )
    return array.astype(kind)


def _spec_of(leaves: Sequence[Any]) -> tf.TensorSpec:
    """What the arrays of several batches have in common."""
    shape = tf.TensorShape((None, *leaves[0].shape[1:]))
    for leaf in leaves:
        shape = shape.most_specific_compatible_shape(leaf.shape)
    return tf.TensorSpec(shape, tf.as_dtype(leaves[0].dtype))
