"""Loops over microbatches compute what their operations compute one after the other."""

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.trainer import cases, cases_split, split_models, split_ranks
from tfparallel_trainer import user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.execution import pipeline_steps
from tfparallel_trainer.engines.split.pipeline import cutting, interleaving, programs, schedule

pytestmark = split_models.MARKS

LAYERS = split_models.LAYERS
MICROBATCHES = 10
BATCH = 21
"""Examples of a place along the data axis: microbatches of 2 follow the first, which has 3."""


def pipeline(stages: int, microbatches: int, order: schedule.Schedule) -> programs.PipelineSpec:
    row = tuple(cutting.Transfer(stage, stage + 1, stage) for stage in range(stages - 1))
    skips = (cutting.Transfer(0, stages - 1, stages),) if stages > 2 else ()
    return programs.PipelineSpec(
        count=stages, microbatches=microbatches, order=order, transfers=(*row, *skips)
    )


def flat(stretches: list[interleaving.Stretch]) -> list[tuple[Any, int]]:
    """The kind and the microbatch of each operation of all repeats."""
    return [
        (operation.kind, operation.microbatch + iteration)
        for stretch in stretches
        for iteration in range(stretch.repeats)
        for operation in stretch.operations
    ]


@given(
    st.integers(1, 4),
    st.integers(1, 24),
    st.integers(0, 24),
    st.sampled_from((schedule.gpipe, schedule.one_forward_one_backward, schedule.forwards)),
    st.booleans(),
)
def test_loops_are_the_operations_of_the_lists(
    stages: int, microbatches: int, larger: int, order: schedule.Schedule, is_one_process: bool
) -> None:
    lists = programs.lists(pipeline(stages, microbatches, order))
    sizes = [2 if microbatch < larger else 1 for microbatch in range(microbatches)]
    for ranks in [tuple(lists)] if is_one_process else [(rank,) for rank in lists]:
        operations = interleaving.interleave({rank: lists[rank] for rank in ranks})
        stretches = interleaving.find_loops(operations, dict.fromkeys(ranks, sizes))
        expected = [(operation.kind, operation.microbatch) for operation in operations]
        assert flat(stretches) == expected
        for before, stretch in itertools.pairwise(stretches):
            if stretch.repeats > 1:
                of_iteration = [
                    (operation.kind, operation.microbatch - 1) for operation in stretch.operations
                ]
                earlier = [
                    (operation.kind, operation.microbatch) for operation in before.operations
                ]
                assert earlier[-len(of_iteration) :] == of_iteration
                assert len({kind for kind, _ in of_iteration}) == len(of_iteration)
                numbers = {number for _, number in of_iteration}
                span = range(min(numbers), max(numbers) + stretch.repeats)
                assert len({sizes[number] for number in span}) == 1


@pytest.mark.parametrize("is_one_process", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_operations_of_a_trace_do_not_grow_with_microbatches(
    stages: int, is_one_process: bool
) -> None:
    def count(microbatches: int) -> int:
        lists = programs.lists(pipeline(stages, microbatches, schedule.one_forward_one_backward))
        most = 0
        for ranks in [tuple(lists)] if is_one_process else [(rank,) for rank in lists]:
            operations = interleaving.interleave({rank: lists[rank] for rank in ranks})
            sizes = dict.fromkeys(ranks, [1] * microbatches)
            stretches = interleaving.find_loops(operations, sizes)
            most = max(most, sum(len(stretch.operations) for stretch in stretches))
        return most

    assert count(64) == count(16)


def recurrent() -> Any:
    """A loop whose gradient takes what its iterations have kept, and random numbers."""
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            LAYERS.Embedding(9, 3),
            LAYERS.Dropout(0.4),
            LAYERS.LSTM(4),
            LAYERS.Dense(6, "tanh"),
            LAYERS.Dropout(0.4),
            LAYERS.Dense(2),
        ]
    )


class Positions(keras.layers.Layer):
    """Adds rows of a table that are the same for all examples."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.table = LAYERS.Embedding(4, 3)

    def call(self, x: Any) -> Any:
        return x + self.table(keras.ops.arange(4))


def positions() -> Any:
    """Look-ups of the batch's rows, and of rows that every microbatch names."""
    tokens = keras.Input((4,), dtype="int32")
    x = LAYERS.Flatten()(Positions()(LAYERS.Embedding(9, 3)(tokens)))
    x = LAYERS.Dense(6, "tanh")(x)
    return keras.Model(tokens, LAYERS.Dense(2)(x))


def statistics() -> Any:
    """Weights that each microbatch's forward pass assigns."""
    tokens = keras.Input((4,), dtype="int32")
    x = LAYERS.Flatten()(LAYERS.Embedding(9, 3)(tokens))
    x = LAYERS.SpectralNormalization(LAYERS.Dense(6))(x)
    x = LAYERS.BatchNormalization(synchronized=True)(x)
    x = LAYERS.BatchNormalization()(LAYERS.Dense(6, "tanh", kernel_regularizer="l2")(x))
    return keras.Model(tokens, LAYERS.Dense(2)(x))


def skipping() -> Any:
    """A tensor that the first stage sends to all others, and a mask."""
    tokens = keras.Input((4,), dtype="int32")
    x = LAYERS.Embedding(9, 3, mask_zero=True)(tokens)
    skipped = LAYERS.GlobalAveragePooling1D()(x)
    hidden = LAYERS.Dense(3, "tanh")(LAYERS.LSTM(5)(x))
    hidden = LAYERS.Dense(3, "tanh")(LAYERS.Add()([hidden, skipped]))
    return keras.Model(tokens, LAYERS.Dense(2)(LAYERS.Add()([hidden, skipped])))


def functions(build: Callable[[], Any], batch: int = BATCH) -> dict[str, Any]:
    random = np.random.default_rng(0)
    count = 2 * batch
    x, y = random.integers(9, size=(count, 4)), random.normal(size=(count, 2))
    data = x.astype(np.int32), y, random.uniform(size=count)
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(
            keras.optimizers.Adam(0.05), "mse", metrics=["mae"]
        ),
        "training_data": lambda: data,
    }


@pytest.mark.parametrize(
    ("build", "mesh", "recomputes"),
    [
        (recurrent, shape.MeshShape(stage=2), False),
        (statistics, shape.MeshShape(data=2, stage=2), False),
        pytest.param(skipping, shape.MeshShape(stage=3), True, marks=pytest.mark.long),
        pytest.param(positions, shape.MeshShape(stage=2, tensor=2), False, marks=pytest.mark.long),
    ],
)
def test_loops_train_as_their_operations_do(
    build: Callable[[], Any],
    mesh: shape.MeshShape,
    recomputes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loops = []

    def train() -> tuple[Any, list[float], dict[str, float], dict[str, float]]:
        batch = BATCH * mesh.data
        replicas, examples, step = split_ranks.prepare_new(
            functions(build, batch), mesh, MICROBATCHES, batch=batch, recomputes=recomputes
        )
        batches = list(examples.epoch(0, 0))
        losses = [step(number, part, frozenset()).loss for number, part in enumerate(batches)]
        loops.append(count_loops(step._traced))
        metrics = replicas.metrics()
        evaluator = pipeline_steps.PipelineEvaluator(
            user.Module(pathlib.Path(__file__), functions(build, batch)), replicas, examples.spec
        )
        return (
            cases_split.whole(replicas),
            losses,
            metrics,
            evaluator.results(evaluator.sums(batches[0])),
        )

    monkeypatch.setattr(interleaving, "_FEWEST_REPEATS", 2)
    weights, losses, metrics, results = train()
    monkeypatch.setattr(interleaving, "_FEWEST_REPEATS", MICROBATCHES + 1)
    expected, expected_losses, expected_metrics, expected_results = train()
    assert loops[0] > loops[1]
    assert losses == pytest.approx(expected_losses, rel=1e-12)
    assert metrics == pytest.approx(expected_metrics, rel=1e-12)
    assert results == pytest.approx(expected_results, rel=1e-12)
    assert cases.difference(weights, expected, relative=False) < 1e-12


def count_loops(traced: dict[Any, Any]) -> int:
    """The loops in the graphs of steps, with those of layers in microbatches of a size alone."""
    operations = [
        operation for step in traced.values() for operation in step.graph.get_operations()
    ]
    return sum(operation.type in {"While", "StatelessWhile"} for operation in operations)


def operations_of(microbatches: int) -> int:
    """The operations in the traced step of two stages, those of functions among them."""
    mesh, batch = shape.MeshShape(stage=2), 2 * microbatches
    _, examples, step = split_ranks.prepare_new(
        functions(positions, batch), mesh, microbatches, batch=batch
    )
    step(0, next(iter(examples.epoch(0, 0))), frozenset())
    (traced,) = step._traced.values()
    definition = traced.graph.as_graph_def()
    inner = sum(len(function.node_def) for function in definition.library.function)
    return len(definition.node) + inner


def test_the_graph_of_a_step_does_not_grow_with_microbatches() -> None:
    assert operations_of(32) == operations_of(8)
