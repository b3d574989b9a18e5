"""The examples of a check: some of each rank's part of a batch, and all of them on every rank.

One device has to hold them, so they are no more than a rank has in a step. They are divided as the
batch is: evenly, unevenly or with ranks that have none, since a job may never meet the other
divisions. Of a part come those whose targets are the smallest and the largest.
"""

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import nest, order
from tfparallel_trainer.objective import replica, state

MOST = 64
"""Examples of a check: enough for rare targets, and little next to 10,000 steps."""


class Division(enum.Enum):
    """How a batch is divided over ranks."""

    EVEN = "even"
    UNEVEN = "uneven"
    WITH_EMPTY_RANKS = "with empty ranks"


def division(examples: int, ranks: int) -> Division:
    """How a batch of so many examples is divided."""
    if examples < ranks:
        return Division.WITH_EMPTY_RANKS
    return Division.UNEVEN if examples % ranks else Division.EVEN


def counts(examples: int, ranks: int, most: int = MOST) -> list[int]:
    """How many examples each rank gives to a check, from the size of the batch: `most` in all.

    Where a rank has fewer examples than there are ranks, the last ones give none.
    """
    kind = division(examples, ranks)
    if kind is Division.WITH_EMPTY_RANKS:
        return [len(part) for part in order.split(examples, ranks)]
    number = min(max(-(-examples // ranks), 2), examples, most)
    if number >= ranks and kind is Division.EVEN:
        number -= number % ranks
    elif number > ranks and number % ranks == 0:
        number -= 1
    elif number == ranks and kind is Division.UNEVEN:
        number += 1
    return [len(part) for part in order.split(number, ranks)]


def choose(part: Any, count: int) -> Any:
    """Take so many of a rank's examples (x, y, sample_weight), of varied targets."""
    x, y, _ = part
    places = np.argsort(_sizes(y if y is not None else x), kind="stable")
    # From both ends: smallest, largest, second smallest, ...
    alternating = [
        places[-(1 + number // 2)] if number % 2 == 0 else places[number // 2]
        for number in range(count)
    ]
    kept = np.sort(np.asarray(alternating, np.int64))
    return nest.convert(lambda leaf: np.asarray(leaf)[kept], part)


def _sizes(values: Any) -> Any:
    """A number for each example that tells how large its values are."""
    total: Any = 0.0
    for leaf in nest.leaves(values):
        array = np.asarray(leaf)
        rows = array.reshape(len(array), -1)
        if array.dtype.kind in "OSU":
            total = total + np.asarray([len(str(row.tolist())) for row in rows], np.float64)
        else:
            total = total + np.nan_to_num(np.abs(rows.astype(np.float64))).sum(1)
    return total


class Gathering:
    """Gives every rank the examples that all ranks have chosen, in the order of the ranks."""

    def __init__(self, replicas: Sequence[replica.Replica], spec: Any) -> None:
        """`spec`: tf.TensorSpec [None, …] of a part."""
        self._replicas = replicas
        self._spec = spec
        self._specs = nest.leaves(spec)
        self._gather = tf.function(self._gathered, autograph=False)
        self._join = tf.function(self._gather_parts, autograph=False, reduce_retracing=True)

    def __call__(self, parts: Sequence[Any]) -> Any:
        """Join the parts of all ranks; those of this process are given, None where one is empty."""
        arrays = [
            [] if part is None else list(map(np.asarray, nest.leaves(part))) for part in parts
        ]
        if self._replicas[0].data.size == 1:
            return nest.packed(self._spec, [tf.convert_to_tensor(leaf) for leaf in arrays[0]])
        headers = [tf.constant(self._header(part), tf.int64) for part in arrays]
        width, *sizes = np.max(self._gather(headers).numpy(), 0).tolist()
        joined = self._join([self._encoded(part, width) for part in arrays])
        leaves = []
        for flat, spec in zip(joined, self._specs, strict=True):
            shape, sizes = sizes[: spec.shape.rank - 1], sizes[spec.shape.rank - 1 :]
            leaves.append(_decode(flat.numpy(), shape, width, spec))
        return nest.packed(self._spec, leaves)

    def _header(self, part: Sequence[Any]) -> list[int]:
        """How many bytes the longest text has, and the shapes of the leaves of an example."""
        longest = max((len(text) for leaf in part for text in _texts(leaf)), default=0)
        if not part:
            return [1] + [0] * sum(spec.shape.rank - 1 for spec in self._specs)
        return [max(longest, 1), *(size for leaf in part for size in leaf.shape[1:])]

    def _encoded(self, part: Sequence[Any], width: int) -> list[tf.Tensor]:
        """The numbers of each leaf, one after the other, in types that all transports carry."""
        if part:
            return [_encode(leaf, width) for leaf in part]
        return [_encode(np.zeros((0,), spec.dtype.as_numpy_dtype), width) for spec in self._specs]

    def _gathered(self, headers: Sequence[tf.Tensor]) -> tf.Tensor:
        remaining = iter(headers)
        return state.on_each(
            self._replicas,
            collectives.Program.SAMPLE,
            lambda rank_replica: rank_replica.data.gather(next(remaining)),
        )[0]

    def _gather_parts(self, parts: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        remaining = iter(parts)
        return state.on_each(
            self._replicas,
            collectives.Program.SAMPLE,
            lambda rank_replica: [
                rank_replica.data.gather_rows([leaf])[0] for leaf in next(remaining)
            ],
            variant=1,
        )[0]


def _texts(leaf: Any) -> list[bytes]:
    if leaf.dtype.kind not in "OSU":
        return []
    return [text if isinstance(text, bytes) else str(text).encode() for text in leaf.reshape(-1)]


def _encode(leaf: Any, width: int) -> tf.Tensor:
    if leaf.dtype.kind in "OSU":
        codes = np.asarray(_texts(leaf), f"S{width}").view(np.uint8)
        return tf.constant(codes, tf.int32)
    if leaf.dtype.kind in "biu":
        return tf.constant(leaf.reshape(-1), tf.int64)
    kept = leaf.dtype in (np.float32, np.float64)
    return tf.constant(leaf.reshape(-1), leaf.dtype if kept else tf.float32)


def _decode(flat: Any, shape: Sequence[int], width: int, spec: tf.TensorSpec) -> tf.Tensor:
    if spec.dtype == tf.string:
        flat = flat.astype(np.uint8).view(f"S{width}")
    return tf.cast(tf.constant(flat.reshape(-1, *shape)), spec.dtype)
