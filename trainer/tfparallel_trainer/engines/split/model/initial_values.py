"""Initial values of variables that exist only as a skeleton: equal to those of the whole model.

Of a large variable they are drawn a block of rows at a time. Its initialiser is traced, not run:
most are one random operation of TensorFlow and arithmetic with scalars. Such an operation numbers
what it draws by a counter (Philox: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3,
2011), so it can begin anywhere, and gives the same bits.
"""

import math
from collections.abc import Callable, Iterator, Mapping
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

Rows = Callable[[int, int], Any]
"""Draws the rows of one variable from one up to another, as an array."""


def draw_values(
    variables: Mapping[str, Any], parts: Mapping[str, shard.Part]
) -> Iterator[tuple[str, Any]]:
    """Give key and part of the initial values of some variables, one variable after the other.

    In memory is what the caller keeps, and at most one small variable or a block of a large one. A
    large one that has to be drawn as a whole (Orthogonal, arrays) is there too. A layer must not be
    built with the shape of its part: its initialiser would draw other numbers.
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
    """Find out how to draw rows of a variable; None: matrices and arrays need the whole."""
    traced = tf.function(lambda: tf.convert_to_tensor(variable.value), autograph=False)
    with tf.device("CPU:0"):
        concrete = traced.get_concrete_function()
    result = concrete.outputs[0]
    if concrete.captured_inputs or not tuple(result.shape):
        return None
    sources = set(_sources(result))
    if len(sources) != 1 or None in sources:
        return None
    source = sources.pop()
    row_shape = tuple(result.shape[1:])
    row = math.prod(row_shape)
    group = _WORDS // 2 if source.outputs[0].dtype.size > 4 else _WORDS
    step = _STEPS[source.type] * (group if source.type in _EACH else 1)
    draw = _function(concrete.graph.as_graph_def(), source, result, step)

    def rows(low: int, high: int) -> Any:
        before = low * row % group
        drawn = draw(
            tf.constant(low * row // group * step, tf.uint64),
            tf.constant([before + (high - low) * row], tf.int32),
        )
        return drawn.numpy()[before:].reshape((high - low, *row_shape))

    return rows


def _sources(tensor: Any) -> Iterator[Any]:
    """The operations that draw what a tensor is computed from element by element; None for others.

    What is computed from numbers alone, such as the limits of a range, is not looked at.
    """
    operation = tensor.op
    if operation.type in _STEPS:
        yield operation
        return
    inputs = [input_tensor for input_tensor in operation.inputs if input_tensor.shape.rank != 0]
    if operation.type not in _ARITHMETIC or any(
        input_tensor.shape != tensor.shape for input_tensor in inputs
    ):
        yield None
        return
    for input_tensor in inputs:
        yield from _sources(input_tensor)


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
            # A number of 128 bits, lower half first.
            low = original[0] + moved
            carried = tf.cast(low < moved, tf.uint64)
            replaced[counter] = tf.concat([[low, original[1] + carried], original[2:]], 0)
        (drawn,) = tf.graph_util.import_graph_def(
            definition, input_map=replaced, return_elements=[result.name], name="rows"
        )
        return drawn

    signature = [tf.TensorSpec((), tf.uint64), tf.TensorSpec((1,), tf.int32)]
    return tf.function(draw, input_signature=signature, autograph=False)
