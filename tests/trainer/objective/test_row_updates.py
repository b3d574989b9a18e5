"""Updates that touch only the rows that a gradient names get the numbers of Keras' optimizers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfparallel_trainer.objective import packed_updates, row_updates

optimizers = keras.optimizers

ROWS, WIDTH, STEPS = 9, 3, 4
NAMED: tuple[list[int], ...] = ([1, 2, 2, 7], [], [2, 2, 2, 0], [8])
"""The rows that each step names."""

OF_ROWS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(0.1),
    "sgd, global norm": lambda: optimizers.SGD(0.1, global_clipnorm=0.5),
    "sgd, norms": lambda: optimizers.SGD(0.1, clipnorm=0.2),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adagrad, from zero": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.0),
    "adagrad, global norm": lambda: optimizers.Adagrad(0.1, global_clipnorm=0.5),
    "adagrad, norms": lambda: optimizers.Adagrad(0.1, clipnorm=0.2),
    "adagrad, values": lambda: optimizers.Adagrad(0.1, clipvalue=0.2),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "momentum, global norm": lambda: optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
    "decay": lambda: optimizers.Adagrad(0.1, weight_decay=0.01, global_clipnorm=0.5),
    "averages": lambda: optimizers.Adagrad(0.1, use_ema=True, ema_overwrite_frequency=2),
    "accumulated": lambda: optimizers.Adagrad(0.1, gradient_accumulation_steps=2),
    "without epsilon": lambda: optimizers.Adagrad(0.1, epsilon=0.0),
    "adam, global norm": lambda: optimizers.Adam(0.1, global_clipnorm=0.5),
}
"""Of which some operation touches all rows."""


def keras_apply(optimizer: Any, gradients: Any, variables: Any) -> None:
    optimizer.apply(gradients, variables)


def rows_apply(optimizer: Any, gradients: Any, variables: Any) -> None:
    row_updates.adapt(optimizer).apply(gradients, variables)


def xla_apply(optimizer: Any, gradients: Any, variables: Any) -> None:
    row_updates.adapt(optimizer, for_xla=True).apply(gradients, variables)


def trained(
    optimizer: Any,
    apply: Callable[..., None],
    kind: str = "float64",
    *,
    is_compiled: bool | None = None,
) -> tuple[list[Any], Any]:
    """The values of a table, a bias and the optimizer's state; and the graph of a step."""
    random = np.random.default_rng(0)
    variables = [
        keras.Variable(random.normal(size=shape), dtype=kind) for shape in ((ROWS, WIDTH), (2,))
    ]
    optimizer.build(variables)

    @tf.function(
        autograph=False,
        jit_compile=is_compiled,
        input_signature=[
            tf.TensorSpec((None, WIDTH), kind),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((2,), kind),
        ],
    )
    def step(values: tf.Tensor, rows: tf.Tensor, bias: tf.Tensor) -> None:
        table = tf.IndexedSlices(values, rows, tf.constant([ROWS, WIDTH], tf.int64))
        apply(optimizer, [table, bias], variables)

    for rows in NAMED:
        step(
            tf.constant(random.normal(size=(len(rows), WIDTH)), kind),
            tf.constant(rows, tf.int64),
            tf.constant(random.normal(size=2), kind),
        )
    state = [variable.value.numpy() for variable in (*variables, *optimizer.variables)]
    return state, step.get_concrete_function().graph


def tables(graph: Any) -> list[str]:
    """The operations of a graph that compute, or read, a tensor of the size of the table."""
    functions = [function.graph for function in graph._functions.values()]  # branches of tf.cond
    return [
        operation.name
        for of_graph in (graph, *functions)
        for operation in of_graph.get_operations()
        for output in operation.outputs
        if tuple(output.shape.as_list() if output.shape.rank else ()) == (ROWS, WIDTH)
    ]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("apply", [rows_apply, packed_updates.apply])
@pytest.mark.parametrize("name", [*OF_ROWS, *OTHERS])
def test_an_update_is_that_of_the_optimizer(name: str, apply: Callable[..., None]) -> None:
    build = (OF_ROWS | OTHERS)[name]
    expected, _ = trained(build(), keras_apply)
    state, _ = trained(build(), apply)
    for array, other in zip(state, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("apply", [rows_apply, packed_updates.apply])
@pytest.mark.parametrize("name", OF_ROWS)
def test_no_operation_touches_the_other_rows(name: str, apply: Callable[..., None]) -> None:
    _, graph = trained(OF_ROWS[name](), apply)
    assert not tables(graph)


@pytest.mark.parametrize("name", ["sgd, global norm", "adagrad", "adagrad, global norm"])
def test_xla_compiles_the_update(name: str) -> None:
    expected, _ = trained(OF_ROWS[name](), keras_apply)
    state, _ = trained(OF_ROWS[name](), xla_apply, is_compiled=True)
    for array, other in zip(state, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-14, atol=1e-14)


def test_keras_own_update_touches_all_rows() -> None:
    for name in ("adagrad", "sgd, global norm"):
        assert tables(trained(OF_ROWS[name](), keras_apply)[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tables_of_two_bytes_are_updated_alike(dtype: str) -> None:
    expected, _ = trained(optimizers.Adagrad(0.1), keras_apply, dtype)
    state, graph = trained(optimizers.Adagrad(0.1), rows_apply, dtype)
    for array, other in zip(state, expected, strict=True):
        near = 4 * 2.0 ** (-10 if dtype == "float16" else -7)  # roundings
        np.testing.assert_allclose(array.astype("float32"), other.astype("float32"), near, near)
    assert not tables(graph)


def test_an_optimizer_of_the_users_is_applied_as_it_is() -> None:
    class CustomAdagrad(keras.optimizers.Adagrad):
        pass

    custom = CustomAdagrad(0.1)
    assert row_updates.adapt(custom) is custom
