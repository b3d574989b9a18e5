"""Draws rows of a variable's initial value without drawing the rows before them.

The initialiser is traced, not run: most are one random operation of TensorFlow and arithmetic with
scalars. Such an operation numbers what it draws by a counter (Philox: Salmon et al., Parallel
Random Numbers: As Easy as 1, 2, 3, 2011), so it can begin anywhere, and gives the same bits.
"""

import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

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


class Rows:
    """Draws rows of one variable."""

    def __init__(self, graph: Any, source: Any, result: Any) -> None:
        """Args:
        graph: the trace of the initialiser.
        source: its operation that draws.
        result: the tensor that is the initial value.
        """
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


def of(variable: Any) -> Rows | None:
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
