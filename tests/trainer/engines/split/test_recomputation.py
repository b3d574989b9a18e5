"""A stage that computes activations again trains as one that keeps them."""

import functools
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import cases, cases_split, split_models, split_ranks
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.pipeline import schedule

pytestmark = split_models.MARKS

LAYERS = split_models.LAYERS


def recurrent() -> Any:
    """Random numbers, a loop, and a layer that adds to the loss in several segments."""
    return keras.Sequential(
        [
            keras.Input((4, 3)),
            LAYERS.LSTM(4, activity_regularizer="l2", return_sequences=True),
            LAYERS.Dropout(0.4),
            LAYERS.LSTM(4),
            LAYERS.Dense(6, "tanh", activity_regularizer="l2"),
            LAYERS.Dropout(0.4),
            LAYERS.Dense(2),
        ]
    )


def normalised() -> Any:
    """Statistics that each microbatch changes, and sums over the data axis in the forward pass."""
    normal = [LAYERS.BatchNormalization(synchronized=True) for _ in range(2)]
    flat = [keras.Input((4, 3)), LAYERS.Flatten(), LAYERS.Dense(6), normal[0]]
    return keras.Sequential([*flat, LAYERS.Dense(6, "tanh"), normal[1], LAYERS.Dense(2)])


def shared() -> Any:
    """A layer and a dropout that are called in several segments, and a skip over them."""
    x = keras.Input((4, 3))
    dense, dropout = LAYERS.Dense(5, "tanh"), LAYERS.Dropout(0.3)
    first = LAYERS.Dense(5)(LAYERS.Flatten()(x))
    second = dropout(dense(first))
    third = dropout(dense(second))
    return keras.Model(x, LAYERS.Dense(2)(LAYERS.Add()([first, third])))


def functions(build: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    data = random.normal(size=(21, 4, 3)), random.normal(size=(21, 2))
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(
            keras.optimizers.Adam(0.05), "mse", metrics=["mae"]
        ),
        "training_data": lambda: data,
    }


def train(
    functions: dict[str, Any],
    mesh: shape.MeshShape,
    order: schedule.Schedule,
    microbatches: int,
    recomputes: bool,
) -> tuple[list[Any], list[float], dict[str, float]]:
    replicas, examples, step = split_ranks.prepare_new(
        functions, mesh, microbatches, order, batch=7, recomputes=recomputes
    )
    batches = enumerate(examples.epoch(0, 0))
    losses = [step(number, batch, frozenset()).loss for number, batch in batches]
    return cases_split.whole(replicas), losses, replicas.metrics()


@pytest.mark.parametrize(
    ("build", "mesh", "order", "microbatches"),
    [
        (recurrent, shape.MeshShape(stage=2), schedule.one_forward_one_backward, 3),
        (recurrent, shape.MeshShape(data=2), schedule.one_forward_one_backward, 1),
        (normalised, shape.MeshShape(data=2, stage=2), schedule.gpipe, 3),
        (shared, shape.MeshShape(), schedule.gpipe, 2),
        (shared, shape.MeshShape(stage=2, tensor=2), schedule.one_forward_one_backward, 3),
    ],
)
def test_a_stage_that_recomputes_trains_as_one_that_does_not(
    build: Any, mesh: shape.MeshShape, order: schedule.Schedule, microbatches: int
) -> None:
    run = functools.partial(train, functions(build), mesh, order, microbatches)
    expected, expected_losses, expected_metrics = run(recomputes=False)
    weights, losses, metrics = run(recomputes=True)
    assert losses == pytest.approx(expected_losses, rel=1e-12)
    assert metrics == pytest.approx(expected_metrics, rel=1e-12)
    assert cases.difference(weights, expected, relative=False) < 1e-12
