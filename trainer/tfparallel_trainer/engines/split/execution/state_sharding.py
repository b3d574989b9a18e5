"""Which slice of a weight a rank along the data axis updates, and keeps optimizer state for.

Stage 2 of ZeRO (Rajbhandari et al., SC 2020). A rank gets the sums of its own slices of gradients,
applies the optimizer to these, and sends the new slices to the other ranks. Slices are rows along
one dimension, so a checkpoint saves them as it saves the parts of a weight that `tensor` divides.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self

import tensorflow as tf

from tfparallel_trainer.checkpoint import shard
from tfparallel_trainer.engines.split.layers import elementwise


@dataclasses.dataclass(frozen=True, slots=True)
class StateSharding:
    """The slices of a rank's part of a weight, one for each rank along the data axis.

    The first ranks have one row more if the rows cannot be divided evenly. Collectives move slices
    of one size, so a shorter slice has a row of its neighbour too, which is dropped on arrival.
    """

    shape: tuple[int, ...]
    """The shape of the rank's part of the weight."""
    dimension: int
    """The dimension that is divided."""
    ranks: int

    @classmethod
    def choose(cls, weight: Any, ranks: int) -> Self | None:
        """Divide a weight along the dimension whose largest slice is smallest.

        None: the weight cannot be divided. A constraint has to work on a slice by itself.
        """
        shape = tuple(weight.shape)
        if weight.overwrite_with_gradient:  # Keras applies no optimizer to these
            return None
        possible = [
            cls(shape, dimension, ranks)
            for dimension, size in enumerate(shape)
            if size >= ranks and elementwise.is_local(weight.constraint, {dimension}, len(shape))
        ]
        return min(possible, key=lambda sharding: sharding.share, default=None)

    @property
    def share(self) -> float:
        """The share of the weight that the largest slice has."""
        return self._most / self.shape[self.dimension]

    def slices(self, index: int) -> shard.Part:
        """A rank's slice, by its place along the data axis."""
        least, more = divmod(self.shape[self.dimension], self.ranks)
        begin = index * least + min(index, more)
        rows = slice(begin, begin + least + (index < more))
        return (*[slice(None)] * self.dimension, rows)

    def part(self, of_weight: shard.Part, whole: Sequence[int], index: int) -> shard.Part:
        """A rank's slice as a part of the unsplit variable."""
        outer = shard.box(of_weight, whole).start
        inner = shard.box(self.slices(index), self.shape)
        return tuple(
            slice(low + start, low + start + count)
            for low, start, count in zip(outer, inner.start, inner.shape, strict=True)
        )

    def of_gradient(self, gradient: Any, index: int) -> Any:
        """A rank's slice of a gradient of any kind.

        A sparse gradient keeps the mentions of its rows.
        """
        slices = self.slices(index)
        if not isinstance(gradient, tf.IndexedSlices):
            return None if gradient is None else gradient[slices]
        sizes = list(shard.box(slices, self.shape).shape)
        dense_shape = tf.constant(sizes, tf.int64)
        if self.dimension:
            values = gradient.values[(slice(None), *slices[1:])]
            return tf.IndexedSlices(values, gradient.indices, dense_shape)
        rows = slices[0]
        mine = (gradient.indices >= rows.start) & (gradient.indices < rows.stop)
        return tf.IndexedSlices(
            tf.boolean_mask(gradient.values, mine),
            tf.boolean_mask(gradient.indices, mine) - rows.start,
            dense_shape,
        )

    def pack(self, tensor: tf.Tensor) -> tf.Tensor:
        """All slices as rows of one size: [ranks, elements]."""
        tensor = tf.ensure_shape(tensor, self.shape)
        if self._is_uneven:
            tensor = tf.gather(tensor, self._padded_rows(), axis=self.dimension)
        before = self.shape[: self.dimension]
        moved = tf.reshape(tensor, (math.prod(before), self.ranks, -1))
        return tf.reshape(tf.transpose(moved, (1, 0, 2)), (self.ranks, -1))

    def unpack(self, row: tf.Tensor, index: int) -> tf.Tensor:
        """A rank's slice, from its row [elements]."""
        sizes = (*self.shape[: self.dimension], self._most, *self.shape[self.dimension + 1 :])
        sliced = shard.box(self.slices(index), self.shape).shape
        return tf.slice(tf.reshape(row, sizes), [0] * len(sizes), sliced)

    def pad(self, tensor: tf.Tensor) -> tf.Tensor:
        """The row [elements] of a slice, as `join` takes it."""
        missing = self._most - tensor.shape[self.dimension]
        if missing:
            paddings = [[0, 0] for _ in self.shape]
            paddings[self.dimension] = [0, missing]
            tensor = tf.pad(tensor, paddings)
        return tf.reshape(tensor, [-1])

    def join(self, rows: tf.Tensor) -> tf.Tensor:
        """The weight, from the rows of all slices: [ranks, elements]."""
        before, after = self.shape[: self.dimension], self.shape[self.dimension + 1 :]
        moved = tf.reshape(rows, (self.ranks, math.prod(before), self._most * math.prod(after)))
        sizes = (*before, self.ranks * self._most, *after)
        tensor = tf.reshape(tf.transpose(moved, (1, 0, 2)), sizes)
        if self._is_uneven:
            tensor = tf.gather(tensor, self._real_rows(), axis=self.dimension)
        return tensor

    @property
    def elements(self) -> int:
        """Numbers in a row."""
        others = (size for index, size in enumerate(self.shape) if index != self.dimension)
        return self._most * math.prod(others)

    @property
    def _most(self) -> int:
        return -(-self.shape[self.dimension] // self.ranks)

    @property
    def _is_uneven(self) -> bool:
        return bool(self.shape[self.dimension] % self.ranks)

    def _bounds(self) -> list[tuple[int, int]]:
        rows = [self.slices(index)[self.dimension] for index in range(self.ranks)]
        return [(row.start, row.stop) for row in rows]

    def _padded_rows(self) -> list[int]:
        last = self.shape[self.dimension] - 1
        return [min(low + row, last) for low, _ in self._bounds() for row in range(self._most)]

    def _real_rows(self) -> list[int]:
        return [
            index * self._most + row
            for index, (low, high) in enumerate(self._bounds())
            for row in range(high - low)
        ]


class VariableSlice:
    """A slice of a variable that an optimizer updates as if it were a variable of its own.

    It has the methods of tf.Variable that Keras' optimizers use, and no storage: an assignment
    replaces the variable's value. (After a strided assignment, each read of the variable would copy
    it.)
    """

    def __init__(self, variable: Any, sharding: StateSharding, index: int) -> None:
        """Take the keras.Variable, its division, and the rank's index along the data axis."""
        self._variable = variable
        self._sharding = sharding
        self._slices = sharding.slices(index)
        self.shape = tf.TensorShape(shard.box(self._slices, sharding.shape).shape)
        self.dtype = variable.value.dtype
        self.name, self.path = variable.value.name, variable.path
        self.device = variable.value.device
        self.constraint = variable.constraint
        self._unique_id = variable.value._unique_id  # by which an optimizer excludes variables

    @property
    def value(self) -> tf.Tensor:
        """The current value of the slice."""
        return tf.convert_to_tensor(self._variable.value)[self._slices]

    def assign(self, value: Any) -> None:
        """Assign the slice; the rest of the variable stays as it is."""
        dimension, rows = self._sharding.dimension, self._slices[-1]
        whole = tf.convert_to_tensor(self._variable.value)
        outside = [slice(None)] * dimension
        before, after = (
            whole[(*outside, part)] for part in (slice(0, rows.start), slice(rows.stop, None))
        )
        self._variable.assign(tf.concat([before, tf.cast(value, self.dtype), after], dimension))

    def assign_add(self, value: Any) -> None:
        """Add to the slice."""
        self.assign(self.value + value)

    def assign_sub(self, value: Any) -> None:
        """Subtract from the slice."""
        self.assign(self.value - value)

    def scatter_add(self, slices: tf.IndexedSlices) -> None:
        """Add to some rows of the slice, once for each mention."""
        self.assign(tf.tensor_scatter_nd_add(self.value, *_places(slices)))

    def scatter_sub(self, slices: tf.IndexedSlices) -> None:
        """Subtract from some rows of the slice, once for each mention."""
        self.assign(tf.tensor_scatter_nd_sub(self.value, *_places(slices)))

    def scatter_update(self, slices: tf.IndexedSlices) -> None:
        """Replace some rows of the slice."""
        self.assign(tf.tensor_scatter_nd_update(self.value, *_places(slices)))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """The slice as it is, for TensorFlow's operations."""
        return tf.convert_to_tensor(self.value, dtype, name=name)

    def __mul__(self, other: Any) -> tf.Tensor:
        return self.value * other


def _places(slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    return slices.indices[:, tf.newaxis], slices.values
