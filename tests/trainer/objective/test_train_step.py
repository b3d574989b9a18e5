"""One collective a step where the number of examples tells the denominators, and Keras' numbers."""

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks, weights
from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import loss

N, T, C, BATCH, COUNT = 9, 4, 3, 4, 2
"""The last batch has one example, so that the second rank has none."""

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(N, T))
SEQUENCES = RANDOM.normal(size=(N, T, C))
STEPS = np.where(RANDOM.random((N, T, 1)) < 0.3, 7.0, SEQUENCES)
CLASSES = RANDOM.integers(0, C, (N, T))
WEIGHTS = RANDOM.uniform(0.5, 2.0, N)


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((T,)), keras.layers.Dense(T, "tanh")])


def sequences() -> keras.Model:
    return keras.Sequential([keras.Input((T, C)), keras.layers.Dense(C)])


def masked() -> keras.Model:
    return keras.Sequential([keras.Input((T, C)), keras.layers.Masking(7.0), keras.layers.Dense(C)])


def two_outputs() -> keras.Model:
    x = keras.Input((T,))
    return keras.Model(x, [keras.layers.Dense(T)(x), keras.layers.Dense(2)(x)])


def regularised() -> keras.Model:
    layer = keras.layers.Dense(T, kernel_regularizer="l2", activity_regularizer="l2")
    return keras.Sequential([keras.Input((T,)), layer])


def squared_error(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y - y_pred), -1)


def crossentropy(**options: Any) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


Case = tuple[int, Callable[[], keras.Model], Callable[[], Any], tuple[Any, Any, Any]]
ROW_PAIR = (ROWS, ROWS**2, None)
LABELLED = (SEQUENCES, CLASSES, None)
BOTH = (ROWS, (ROWS**2, ROWS[:, :2]), None)

CASES: dict[str, Case] = {
    "a mean": (1, dense, lambda: "mse", ROW_PAIR),
    "a sum": (1, dense, lambda: keras.losses.Huber(reduction="sum"), ROW_PAIR),
    "weights of examples": (1, dense, lambda: "mse", (ROWS, ROWS**2, WEIGHTS)),
    "values of a sequence": (1, sequences, crossentropy, LABELLED),
    "two outputs": (1, two_outputs, lambda: ["mse", "mae"], BOTH),
    "regularised": (1, regularised, lambda: "mse", ROW_PAIR),
    "a mean by weights, without weights": (
        1,
        dense,
        lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        ROW_PAIR,
    ),
    "a mean by weights": (
        2,
        dense,
        lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        (ROWS, ROWS**2, WEIGHTS),
    ),
    "a function of the user's": (2, dense, lambda: squared_error, ROW_PAIR),
    "two outputs, a function of the user's": (2, two_outputs, lambda: ["mse", squared_error], BOTH),
    "ignored labels": (2, sequences, lambda: crossentropy(ignore_class=0), LABELLED),
    "masked steps": (2, masked, crossentropy, (STEPS, CLASSES, None)),
}


def batches(examples: tuple[Any, Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for first in range(0, N, BATCH):
        part = slice(first, first + BATCH)
        yield keras.tree.map_structure(lambda a, s=part: None if a is None else a[s], examples)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", CASES)
def test_a_step_has_as_few_collectives_as_the_loss_allows(name: str) -> None:
    count, build, make_loss, examples = CASES[name]
    module = ranks.module(
        build, lambda model: model.compile(keras.optimizers.SGD(0.3, momentum=0.9), make_loss())
    )
    alone = ranks.build(module, examples, 1)[0].model
    replicas = ranks.build(module, examples, COUNT)
    feed = ranks.feed_of(examples, COUNT, BATCH)
    step = mesh_steps.MeshTrainStep(module, replicas, feed.spec, BATCH)
    for number, (batch, whole) in enumerate(zip(feed.epoch(0, 0), batches(examples), strict=True)):
        result = step(number, batch, frozenset())
        expected = alone.train_on_batch(*whole, return_dict=True)
        assert result.loss == pytest.approx(expected["loss"], rel=1e-9)
        alone.reset_metrics()
    for replica in replicas:
        difference = weights.difference(replica.model.get_weights(), alone.get_weights())
        assert difference <= 1e-10
    for pattern in ((True, True), (True, False)):
        graph = step._function(pattern, False).graph
        counts = collections.Counter(operation.type for operation in graph.get_operations())
        assert sum(counts[kind] for kind in counts if kind.startswith("Collective")) == (
            COUNT * count
        )


def test_values_that_reduce_the_examples_are_not_taken_as_values_of_each() -> None:
    model = dense()
    model.compile("sgd", keras.losses.CosineSimilarity(axis=0))
    terms = loss.terms(model, ("output",))
    counts = []

    def run(y: tf.Tensor) -> None:
        (fraction,) = loss.fractions(terms, ("output",), y, y, None)
        counts.append(fraction.values_per_example)

    for size in (T, None):
        spec = tf.TensorSpec((None, size), tf.float32)
        tf.function(run, autograph=False).get_concrete_function(spec)
    assert counts == [None, None]


def test_no_tensors_have_no_sums() -> None:
    group = shape.MeshShape(data=COUNT, generation=ranks.generation()).group(0, shape.Axis.DATA)
    end = collectives.Communicator.for_rank(group, 0, ranks.DEVICES[0])
    assert end.sum_all([]) == []


@pytest.mark.usefixtures("float64")
def test_buckets_leave_while_the_backward_pass_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "GATHERED_BYTES", 0)
    monkeypatch.setattr(collectives, "BUCKET_BYTES", 8 * (T * T + 2 * T))

    def build() -> keras.Model:
        return keras.Sequential(
            [keras.Input((T,)), *(keras.layers.Dense(T, "tanh") for _ in range(3))]
        )

    module = ranks.module(build, lambda model: model.compile(keras.optimizers.Adam(0.1), "mse"))
    alone = ranks.build(module, ROW_PAIR, 1)[0].model
    replicas = ranks.build(module, ROW_PAIR, COUNT)
    feed = ranks.feed_of(ROW_PAIR, COUNT, BATCH)
    step = mesh_steps.MeshTrainStep(module, replicas, feed.spec, BATCH)
    for number, (batch, whole) in enumerate(zip(feed.epoch(0, 0), batches(ROW_PAIR), strict=True)):
        step(number, batch, frozenset())
        alone.train_on_batch(*whole)
    for replica in replicas:
        difference = weights.difference(replica.model.get_weights(), alone.get_weights())
        assert difference <= 1e-10

    graph = step._function((True, True), False).graph
    sums = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
    buckets = sums[: len(sums) // COUNT]  # of the first rank
    assert len(buckets) > 1
    for bucket, following in itertools.pairwise(buckets):
        assert bucket in causes(following)
        assert buckets[-1].inputs[0].op not in causes(bucket)


def causes(operation: tf.Operation) -> set[tf.Operation]:
    """All that an operation waits for."""
    visited: set[tf.Operation] = set()
    pending = [operation]
    while pending:
        current = pending.pop()
        operations = {tensor.op for tensor in current.inputs} | set(current.control_inputs)
        pending += operations - visited
        visited |= operations
    return visited
