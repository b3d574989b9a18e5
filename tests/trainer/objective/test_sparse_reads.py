"""Look-ups by a table's handle: steps read only the rows they name, and get what Keras gives."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import lookup_models, ranks
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import evaluate, sparse_reads

ROWS = 5


def _takers(graph: Any, table: Any) -> set[str]:
    """The types of the operations of a graph that take a variable."""
    (inner,) = [inner for outer, inner in graph.captures if outer is table.value.handle]
    return {operation.type for operation in inner.consumers()}


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_step_and_an_evaluation_read_only_the_rows_of_the_batch(optimizer: str) -> None:
    module = ranks.module(lookup_models.ALL["tied"], lambda model: model.compile(optimizer, "mse"))
    examples = lookup_models.examples()
    (replica,) = ranks.build(module, examples, 1)
    spec = ranks.feed_of(examples, 1, 4).spec
    table = replica.model.trainable_variables[0]
    training = mesh_steps.MeshTrainStep(module, [replica], spec, 4).trace((True,))
    assert _takers(training.graph, table) == {"ResourceGather", "ResourceScatterSub"}

    @tf.function(autograph=False)
    def evaluation(part: Any) -> Any:
        return evaluate.sums_of(replica, part)

    evaluated = evaluation.get_concrete_function(spec)
    assert _takers(evaluated.graph, table) == {"ResourceGather"}


def _rows(indices: Any) -> Any:
    return lambda table: keras.ops.take(table, indices, axis=0)


LOOKUPS: dict[str, Callable[[Any], Any]] = {
    "int32": _rows(np.array([[0, 3], [3, 1]], "int32")),
    "int64": _rows(np.array([4, 4, 0], "int64")),
    "from the end": _rows(np.array([-1, 2, -5], "int32")),
    "small integers": _rows(np.array([1, -2], "int16")),
    "a number": _rows(2),
    "ragged": lambda table: keras.ops.take(table, tf.ragged.constant([[1], [0, 4]]), axis=0).values,
    "columns": lambda table: keras.ops.take(table, np.array([1, 0]), axis=1),
    "flat": lambda table: keras.ops.take(table, np.array([7, 1])),
    "its own value": lambda table: keras.ops.take(table.value, np.array([1, 3, 1]), axis=0),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_rows_and_gradients_are_those_of_keras(name: str) -> None:
    table = keras.Variable(np.arange(ROWS * 3.0).reshape(ROWS, 3))

    def look_up() -> list[Any]:
        with tf.GradientTape() as tape:
            rows = LOOKUPS[name](table)
            loss = tf.reduce_sum(tf.square(rows))
        return [rows, tf.convert_to_tensor(tape.gradient(loss, table.value))]

    expected = look_up()
    with sparse_reads.by_handle():
        computed = look_up()
    for array, other in zip(computed, expected, strict=True):
        np.testing.assert_array_equal(array, other)


def test_a_value_that_a_scope_gives_a_table_is_looked_up() -> None:
    table = keras.Variable(np.zeros((ROWS, 3)))
    scope = keras.StatelessScope(state_mapping=[(table, tf.ones((ROWS, 3)))])
    with scope, sparse_reads.by_handle():
        rows = keras.ops.take(table, np.array([1, 2]), axis=0)
    np.testing.assert_array_equal(rows, np.ones((2, 3)))


def test_outside_of_all_bodies_keras_looks_up_by_itself() -> None:
    table = keras.Variable(np.zeros((ROWS, 3)))

    @tf.function(autograph=False)
    def step() -> Any:
        with sparse_reads.by_handle(), sparse_reads.by_handle():
            pass
        return keras.ops.take(table, np.array([1]), axis=0)

    assert _takers(step.get_concrete_function().graph, table) == {"ReadVariableOp"}
