"""Initial values of variables that exist only as a skeleton: equal to those of the whole model."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.checkpoint import shard, values
from tfparallel_trainer.engines.split.model import drawing

Part = shard.Part


def of(variables: Mapping[str, Any], parts: Mapping[str, Part]) -> Iterator[tuple[str, Any]]:
    """Give the parts of the initial values of some variables, one variable after the other.

    In memory is what the caller keeps, and at most one small variable or a block of a large one. A
    large one that has to be drawn as a whole (Orthogonal, arrays) is there too. A layer must not be
    built with the shape of its part: its initialiser would draw other numbers, and some scale
    them by the shape.

    Args:
        variables: those of a skeleton, by key.
        parts: what this device keeps, by key.

    Yields:
        Key and part.
    """
    for key, part in parts.items():
        variable = variables[key]
        dtype = tf.as_dtype(variable.dtype)
        large = math.prod(variable.shape) * dtype.size > values.BLOCK_BYTES
        rows = drawing.of(variable) if large else None
        if rows is not None:
            yield key, _in_blocks(variable, part, rows, dtype)
            continue
        whole = np.asarray(variable.value)
        # Copied, because a slice (and TensorFlow's, too) would keep the whole in memory.
        yield key, np.array(whole[part])
        del whole


def _in_blocks(variable: Any, part: Part, rows: drawing.Rows, dtype: tf.DType) -> Any:
    box = shard.box(part, variable.shape)
    low, *inner = box.slices
    content = np.empty(box.shape, dtype.as_numpy_dtype)
    count = values.rows_of(variable.shape, dtype.size)
    for first in range(low.start, low.stop, count):
        last = min(first + count, low.stop)
        block = rows(first, last)
        content[first - low.start : last - low.start] = block[(slice(None), *inner)]
    return content
