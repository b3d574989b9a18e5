"""Several steps in one call: a loop of TensorFlow around the function of a step.

A call costs Python some tenths of a millisecond, which is much of a short step. A single step is a
loop of one: TensorFlow optimizes a function that it calls otherwise than one in a loop, and rounds
otherwise. So the numbers are the same, bit by bit, wherever a run is cut into executions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.data import batch_division, nest

ATTRIBUTES = {"_noinline": True}
"""Of a step: it stays a function of its own in the loop."""
_HOST = "/device:CPU:0"


def build_loop(step: Any, width: int, spec: Any) -> Any:
    """Build the loop around a step.

    Args:
        step: a concrete function of a step's number, float64 [width] and the parts of a batch. Its
            first output is a float64 vector.
        width: of these numbers.
        spec: of the parts, as tf.TensorSpec.

    Returns:
        A concrete function of the first step's number, float64 [steps, width] and the parts of all
        batches, stacked. It returns the vectors of all steps, stacked. None if the step draws from
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

    return tf.function(run, autograph=False).get_concrete_function(
        tf.TensorSpec((), tf.int64),
        tf.TensorSpec((None, width), tf.float64),
        nest.convert(lambda leaf: tf.TensorSpec((None, *leaf.shape), leaf.dtype), spec),
    )


def count_alike(batches: Sequence[batch_division.Batch]) -> int:
    """How many of the first batches have parts of the first one's shapes, none of them empty."""
    shapes = _shapes(batches[0])
    count = 1
    while shapes and count < len(batches) and _shapes(batches[count]) == shapes:
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
