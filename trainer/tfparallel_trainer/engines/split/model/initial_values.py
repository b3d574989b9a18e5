"""Initial values of variables that exist only as a skeleton: equal to those of the whole model.

Of a large variable they are drawn a block of rows at a time. Its initialiser is traced, not run:
most are one random operation of TensorFlow and arithmetic with scalars. Such an operation numbers
what it draws by a counter (Philox: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3,
2011), so it can begin anywhere, and gives the same bits.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.checkpoint import shard

_STEPS = {
    "StatelessRandomUniformV2": 1,
    "StatelessRandomNormalV2": 1,
    "StatelessTruncatedNormalV2": 64,
    "Fill": 0,
}
"""How far operations move the counter: for each group of elements. Those that draw an element again
until it is near enough move it for each element. One that fills has no counter."""
_EACH = frozenset({"StatelessTruncatedNormalV2"})
_ARITHMETIC = frozenset({"AddV2", "Cast", "Identity", "Mul", "RealDiv", "Sub"})
_WORDS = 4
"""Numbers of 32 bits that the counter gives at a time, for a group of elements."""


def of(variables: Mapping[str, Any], parts: Mapping[str, shard.Part]) -> Iterator[tuple[str, Any]]:
    """Give the parts of the initial values of some variables, one variable after the other.

    In memory is what the caller keeps, and at most one small variable or a block of a large one. A
    large one that has to be drawn as a whole (Orthogonal, arrays) is there too. A layer must not be
    built with the shape of its part: its initialiser would draw other numbers, and some scale
    them by the shape.

    Yields:
        Key and part.
    """
    for key, part in parts.items():
        variable = variables[key]
        dtype = tf.as_dtype(variable.dtype)
        large = math.prod(variable.shape) * dtype.size > shard.BLOCK_BYTES
        rows = rows_of(variable) if large else None
        if rows is not None:
            yield key, _in_blocks(variable, part, rows, dtype)
            continue
        whole = np.asarray(variable.value)
        # Copied, because a slice (and TensorFlow's, too) would keep the whole in memory.
        yield key, np.array(whole[part])
        del whole


class Rows:
    """Draws rows of one variable."""

    def __init__(self, graph: Any, source: Any, result: Any) -> None:
        """Take the operation of a trace that draws, and the tensor that is the initial value."""
        self._shape = tuple(result.shape)
        self._row = math.prod(self._shape[1:])
        wide = source.outputs[0].dtype.size > 4
        self._group = _WORDS // 2 if wide else _WORDS
        self._step = _STEPS[source.type] * (self._group if source.type in _EACH else 1)
        self._draw = _function(graph.as_graph_def(), source, result, self._step)

    def __call__(self, low: int, high: int) -> Any:
        """Give the rows from `low` up to `high` as an array."""
        first, count = low * self._row, (high - low) * self._row
        before = first % self._group
        drawn = self._draw(
            tf.constant(first // self._group * self._step, tf.uint64),
            tf.constant([before + count], tf.int32),
        )
        return drawn.numpy()[before:].reshape((high - low, *self._shape[1:]))


def _in_blocks(variable: Any, part: shard.Part, rows: Rows, dtype: tf.DType) -> Any:
    box = shard.box(part, variable.shape)
    low, *inner = box.slices
    content = np.empty(box.shape, dtype.as_numpy_dtype)
    count = shard.rows_of(variable.shape, dtype.size)
    for first in range(low.start, low.stop, count):
        last = min(first + count, low.stop)
        block = rows(first, last)
        content[first - low.start : last - low.start] = block[(slice(None), *inner)]
    return content


def rows_of(variable: Any) -> Rows | None:
    """Find out how to draw rows of a variable without a value; None where it needs the whole.

    Orthogonal and other matrices, and values that an array gives, need the whole.
    """
    traced = tf.function(lambda: tf.convert_to_tensor(variable.value), autograph=False)
    with tf.device("CPU:0"):
        concrete = traced.get_concrete_function()
    result = concrete.outputs[0]
    if concrete.captured_inputs or not tuple(result.shape):
        return None
    sources = set(_sources(result))
    if len(sources) != 1 or None in sources:
        return None
    return Rows(concrete.graph, sources.pop(), result)


def _sources(tensor: Any) -> Iterator[Any]:
    """The operations that draw what a tensor is computed from element by element; None for others.

    What is computed from numbers alone, such as the limits of a range, is not looked at.
    """
    operation = tensor.op
    if operation.type in _STEPS:
        yield operation
        return
    inputs = [one for one in operation.inputs if one.shape.rank != 0]
    if operation.type not in _ARITHMETIC or any(one.shape != tensor.shape for one in inputs):
        yield None
        return
    for one in inputs:
        yield from _sources(one)


def _function(definition: Any, source: Any, result: Any, step: int) -> Any:
    """Make a function of (how far the counter moves, [number of elements]) from a trace."""
    sizes = source.inputs[0].name
    counter = source.inputs[2].name if step else None

    def draw(moved: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        replaced = {sizes: count}
        if counter is not None:
            (original,) = tf.graph_util.import_graph_def(
                definition, return_elements=[counter], name="counter"
            )
            replaced[counter] = _moved(original, moved)
        (drawn,) = tf.graph_util.import_graph_def(
            definition, input_map=replaced, return_elements=[result.name], name="rows"
        )
        return drawn

    signature = [tf.TensorSpec((), tf.uint64), tf.TensorSpec((1,), tf.int32)]
    return tf.function(draw, input_signature=signature, autograph=False)


def _moved(counter: tf.Tensor, by: tf.Tensor) -> tf.Tensor:
    """Add to a number of 128 bits, lower half first."""
    low = counter[0] + by
    carried = tf.cast(low < by, tf.uint64)
    return tf.concat([[low, counter[1] + carried], counter[2:]], 0)
