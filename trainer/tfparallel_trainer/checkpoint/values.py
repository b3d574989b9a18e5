"""Reads and writes variables by blocks of rows, so that large ones are never in memory twice."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

BLOCK_BYTES = 4 << 20
"""A block has at most so many bytes, but at least one row."""

Placed = tuple[tuple[slice, ...], Any]
"""An array and the place that it has in a variable."""


def rows_of(shape: Sequence[int], item_bytes: int) -> int:
    """How many rows a block has; an array without axes is one row."""
    row = item_bytes * math.prod(shape[1:])
    return max(1, BLOCK_BYTES // max(1, row))


def blocks(variable: Any) -> Iterator[Any]:
    """Give the value of a variable as arrays, one block of rows after the other."""
    shape = tuple(variable.shape)
    value = variable.value
    if not shape or not _is_divisible(value):
        # A copy in this order; np.ascontiguousarray would give a scalar an axis.
        value = np.array(value.numpy(), order="C")
    if not shape:
        yield value
        return
    rows = rows_of(shape, tf.as_dtype(value.dtype).size)
    for low in range(0, shape[0], rows):
        block = value[low : low + rows]
        yield block if isinstance(block, np.ndarray) else block.numpy()


def assign(variable: Any, parts: Iterator[Placed]) -> None:
    """Assign arrays to the places of a variable that they are given with; they fill all of it."""
    value, shape = variable.value, tuple(variable.shape)
    kind = value.dtype.as_numpy_dtype
    if not _is_divisible(value):
        whole = np.empty(shape, kind)
        for place, block in parts:
            whole[place] = block
        variable.assign(whole)
        return
    for place, block in parts:
        if block.shape == shape:
            variable.assign(block)
        else:
            value[place].assign(block.astype(kind, copy=False))


def _is_divisible(value: Any) -> bool:
    """Whether parts of a value can be read and written alone; a strategy's variables cannot."""
    is_strategys = isinstance(value, tf.distribute.DistributedValues)
    return not is_strategys and hasattr(value[:0] if value.shape.rank else value, "assign")
