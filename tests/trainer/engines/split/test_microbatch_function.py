"""A stage is traced once for microbatches of one size, and computes what its operations compute."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import cases, cases_split, split_models, split_ranks
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.execution import microbatch_function
from tfparallel_trainer.engines.split.execution.microbatch_function import (
    Computation,
    MicrobatchFunction,
)

pytestmark = split_models.MARKS

LAYERS = split_models.LAYERS
STEPS = 2


def turned(arguments: Sequence[tf.Tensor]) -> Computation:
    """Results and gradients of a product with a turned matrix; the third argument has none."""
    rows, matrix, _ = arguments
    with tf.GradientTape() as tape:
        tape.watch([rows, matrix])
        product = tf.tanh(rows) @ tf.transpose(matrix)

    def pullback(cotangents: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        gradients: list[tf.Tensor] = tape.gradient(
            product, [rows, matrix], output_gradients=cotangents[0]
        )
        return gradients

    return Computation([product], pullback, [tf.TensorSpec(product.shape, product.dtype)])


def test_calls_give_results_and_gradients_of_their_own_arguments() -> None:
    random = np.random.default_rng(0)
    matrix = tf.constant(random.normal(size=(4, 3)))
    parts = [tf.constant(random.normal(size=(2, 3))) for _ in range(5)]
    traces = []

    def compute(arguments: Sequence[tf.Tensor]) -> Computation:
        traces.append(arguments)
        return turned(arguments)

    @tf.function(autograph=False)
    def run(parts: list[tf.Tensor]) -> list[Any]:
        function = MicrobatchFunction(compute, [parts[0], matrix, parts[0]])
        computations = [function([part, matrix, part]) for part in parts]
        gradients = [
            computation.pullback([computation.results[0]])
            for computation in reversed(computations)
            if computation.pullback
        ]
        assert all(gradient.shape == (4, 3) for _, gradient in gradients)
        return [[computation.results for computation in computations], gradients[::-1]]

    results, gradients = run(parts)
    assert len(traces) == 1
    for part, (result,), both in zip(parts, results, gradients, strict=True):
        expected = turned([part, matrix, part])
        np.testing.assert_allclose(result, expected.results[0], rtol=1e-14)
        assert expected.pullback is not None
        for gradient, other in zip(both, expected.pullback(expected.results), strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-14)


def recurrent() -> Any:
    """A loop, whose gradient takes what its turns have kept, and random numbers."""
    return keras.Sequential(
        [
            keras.Input((4, 3)),
            LAYERS.LSTM(4),
            LAYERS.Dropout(0.4),
            LAYERS.Dense(6, "tanh"),
            LAYERS.Dropout(0.4),
            LAYERS.Dense(2),
        ]
    )


def synchronised() -> Any:
    """Statistics that are carried from one microbatch to the next, and sums over places."""
    normal = [LAYERS.BatchNormalization(synchronized=True) for _ in range(2)]
    flat = [keras.Input((4, 3)), LAYERS.Flatten(), LAYERS.Dense(6), normal[0]]
    return keras.Sequential([*flat, LAYERS.Dense(6, "tanh"), normal[1], LAYERS.Dense(2)])


def deep(count: int = 4) -> Any:
    return keras.Sequential(
        [
            keras.Input((4, 3)),
            LAYERS.Flatten(),
            *(LAYERS.Dense(8, "tanh", kernel_regularizer="l2") for _ in range(count)),
            LAYERS.Dense(2),
        ]
    )


def functions(build: Callable[[], Any]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    data = random.normal(size=(14, 4, 3)), random.normal(size=(14, 2))
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"]
        ),
        "training_data": lambda: data,
    }


@pytest.mark.parametrize(
    ("build", "mesh"),
    [
        (recurrent, shape.MeshShape(stage=2)),
        (synchronised, shape.MeshShape(data=2, stage=2)),
        (deep, shape.MeshShape(stage=2, tensor=2)),
    ],
)
def test_functions_train_as_operations_do(
    build: Callable[[], Any], mesh: shape.MeshShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Microbatches of 7 examples have two sizes: one of 3, and two of 2, which are a function."""

    def train() -> tuple[list[Any], list[float], dict[str, float]]:
        replicas, examples, step = split_ranks.prepare_new(functions(build), mesh, 3, batch=7)
        batches = enumerate(examples.epoch(0, 0))
        losses = [step(number, batch, frozenset()).loss for number, batch in batches]
        return cases_split.whole(replicas), losses, replicas.metrics()

    weights, losses, metrics = train()
    monkeypatch.setattr(microbatch_function, "MicrobatchFunction", lambda compute, _: compute)
    expected, expected_losses, expected_metrics = train()
    assert len(losses) == STEPS
    assert losses == pytest.approx(expected_losses, rel=1e-12)
    assert metrics == pytest.approx(expected_metrics, rel=1e-12)
    assert cases.difference(weights, expected, relative=False) < 1e-12


def operations_of(microbatches: int) -> int:
    """The operations in the traced step of two stages, those of functions among them."""
    mesh, build = shape.MeshShape(stage=2), functions(functools.partial(deep, 16))
    _, examples, step = split_ranks.prepare_new(build, mesh, microbatches, batch=12)
    (batch, *_) = examples.epoch(0, 0)
    step(0, batch, frozenset())
    (traced,) = step._traced.values()
    definition = traced.graph.as_graph_def()
    inner = sum(len(function.node_def) for function in definition.library.function)
    return len(definition.node) + inner


def test_the_graph_of_a_step_hardly_grows_with_microbatches() -> None:
    assert operations_of(12) < 1.5 * operations_of(3)
