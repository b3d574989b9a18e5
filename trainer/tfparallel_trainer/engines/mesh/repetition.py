"""Several steps in one call: a loop of TensorFlow around the function of a step.

A call costs Python some tenths of a millisecond, which is much of a short step. The step stays a
function of its own, and TensorFlow optimizes it by the options of any other call. The loop around
it stays as it was traced, because TensorFlow would otherwise optimize the step with it, and round
otherwise. So the numbers are the same, bit by bit, wherever a run is cut into executions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.ops import handle_data_util

from tfparallel_trainer.data import batch_division, nest
from tfparallel_trainer.objective import eager_options

ATTRIBUTES = {"_noinline": True}
"""Of a step: it stays a function of its own in the loop."""
_HOST = "/device:CPU:0"


def build_loop(step: Any, width: int, spec: Any) -> Callable[..., tf.Tensor] | None:
    """Build the loop around a step.

    Args:
        step: a concrete function of a step's number, float64 [width] and the parts of a batch. Its
            first output is a float64 vector.
        width: of these numbers.
        spec: of the parts, as tf.TensorSpec.

    Returns:
        A function of the first step's number, float64 [steps, width] and the parts of all batches,
        stacked. It returns the vectors of all steps, stacked. None if the step draws from
        a state that TensorFlow keeps in each copy of an operation: the loop would repeat numbers.
    """
    if _draws_from_operations(step):
        return None

    def run(first: tf.Tensor, numbers: tf.Tensor, stacked: Any) -> tf.Tensor:
        count = tf.shape(numbers)[0]

        def compute(index: tf.Tensor, outputs: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            with tf.device(_HOST):  # where the batches are
                parts = nest.convert(lambda leaf: leaf[index], stacked)
            vector, _ = step(first + tf.cast(index, tf.int64), numbers[index], parts)
            return index + 1, outputs.write(index, vector)

        _, outputs = tf.while_loop(
            lambda index, _: index < count,
            compute,
            (tf.constant(0), tf.TensorArray(tf.float64, count)),
            parallel_iterations=1,  # a step reads what the one before has written
        )
        return outputs.stack()

    loop = tf.function(run, autograph=False).get_concrete_function(
        tf.TensorSpec((), tf.int64),
        tf.TensorSpec((None, width), tf.float64),
        nest.convert(lambda leaf: tf.TensorSpec((None, *leaf.shape), leaf.dtype), spec),
    )

    def execute(*arguments: Any) -> tf.Tensor:
        with eager_options.unoptimized():
            return loop(*arguments)

    return execute


def describe_variables() -> None:
    """Write the type and shape of each variable into the function that is being traced.

    If Python calls a function, TensorFlow finds them in the variables, and optimizes by them. If a
    loop calls it, TensorFlow sees only handles, and would optimize otherwise.
    """
    for placeholder in tf.compat.v1.get_default_graph().internal_captures:
        if placeholder.dtype != tf.resource:
            continue
        handle = handle_data_util.get_resource_handle_data(placeholder)
        dtypes, shapes = attr_value_pb2.AttrValue(), attr_value_pb2.AttrValue()
        for pair in handle.shape_and_type:
            dtypes.list.type.append(pair.dtype)
            shapes.list.shape.append(pair.shape)
        if handle.is_set:
            placeholder.op._set_attr("_handle_dtypes", dtypes)
            placeholder.op._set_attr("_handle_shapes", shapes)


def count_alike(batches: Sequence[batch_division.Batch]) -> int:
    """How many of the first batches have the first one's examples and shapes, and no empty part."""
    shapes = _shapes(batches[0])
    count = 1
    while (
        shapes
        and count < len(batches)
        and batches[count].examples == batches[0].examples
        and _shapes(batches[count]) == shapes
    ):
        count += 1
    return count


def stack_parts(structures: Sequence[Any]) -> Any:
    """Stack the leaves of structures with leaves of the same shapes, as tensors."""
    columns = zip(*(nest.leaves(structure) for structure in structures), strict=True)
    return nest.packed(structures[0], [_stacked(column) for column in columns])


def _stacked(leaves: Sequence[Any]) -> tf.Tensor:
    is_array = isinstance(leaves[0], np.ndarray)
    return tf.convert_to_tensor(np.stack(leaves)) if is_array else tf.stack(leaves)


def _shapes(batch: batch_division.Batch) -> list[tuple[int, ...]]:
    """The shapes of all parts; none if a part is empty."""
    if any(part is None for part in batch.parts):
        return []
    return [tuple(leaf.shape) for leaf in nest.leaves(batch.parts)]


def _draws_from_operations(function: Any) -> bool:
    """Whether random operations keep a state by themselves, as those of `tf.random` do."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for nested in graph.library.function for node in nested.node_def)]
    return any("seed2" in node.attr for node in nodes)
