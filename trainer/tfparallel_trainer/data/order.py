"""The order of examples: a function of seed, epoch and position alone.

It does not depend on the number of ranks. So any number of ranks sees the same batches, and a
restart finds its position from two numbers.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

_WINDOW = 1 << 14
"""For how many positions an order is computed at once."""


def split(examples: int, parts: int) -> list[range]:
    """Divide consecutive examples into parts as equal as can be; the first ones are longer."""
    base, longer = divmod(examples, parts)
    bounds = [part * base + min(part, longer) for part in range(parts + 1)]
    return [range(bounds[part], bounds[part + 1]) for part in range(parts)]


def part_sizes(examples: tf.Tensor, parts: int) -> tf.Tensor:
    """The lengths of the ranges of `split`, int64 [parts], for an int64 tensor of a number."""
    return examples // parts + tf.cast(tf.range(parts, dtype=tf.int64) < examples % parts, tf.int64)


def batches(examples: int, batch_size: int, start: int = 0) -> Iterator[range]:
    """The positions of each batch of an epoch from position `start`; the last may be smaller."""
    for first in range(start, examples, batch_size):
        yield range(first, min(first + batch_size, examples))


def steps(examples: int, batch_size: int) -> int:
    """The number of batches in an epoch."""
    return -(-examples // batch_size)


def shuffled(positions: range, examples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Which examples stand at these positions of an epoch's order.

    A permutation of all examples for each seed and epoch, computed for the wanted positions only
    (`tf.random.experimental.index_shuffle`).
    """
    if not positions:
        return np.zeros((0,), np.int64)
    with tf.device("CPU:0"):
        indices = numbers(
            tf.range(positions.start, positions.stop, dtype=tf.int64),
            examples,
            seed,
            tf.constant(epoch, tf.int64),
        )
    return np.asarray(indices.numpy(), np.int64)


class ShuffledOrder:
    """An epoch's order, as `shuffled` has it, for positions that are asked for one after the other.

    What TensorFlow needs for a call is more than for thousands of positions.
    """

    def __init__(self, examples: int, seed: int, epoch: int) -> None:
        self._arguments = (examples, seed, epoch)
        self._window = range(0)
        self._numbers = np.zeros((0,), np.int64)

    def __getitem__(self, positions: range) -> npt.NDArray[np.int64]:
        window = self._window
        if not window.start <= positions.start <= positions.stop <= window.stop:
            end = min(positions.start + _WINDOW, self._arguments[0])
            self._window = window = range(positions.start, max(positions.stop, end))
            self._numbers = shuffled(window, *self._arguments)
        return self._numbers[positions.start - window.start : positions.stop - window.start]


def numbers(positions: tf.Tensor, examples: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    """As `shuffled`, for tensors (int64), so that it can be traced."""
    return tf.random.experimental.index_shuffle(
        positions,
        seed=tf.stack([tf.constant(seed, tf.int64), epoch]),
        max_index=tf.constant(examples - 1, tf.int64),
    )
