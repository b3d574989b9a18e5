"""Dropout on parts: reproducible, other on each part, and as strong as on the whole."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import split_group
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import sharded
from tfparallel_trainer.engines.split.model import graph, randomness, recording

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
TENSOR = shape.Axis.TENSOR
WIDTH = 400


def drawn(model_graph: Any, values: dict[str, Any], ranks: int) -> tuple[Any, list[Any]]:
    """What dropout makes of ones: the whole tensor, and the seeds that ranks then have."""
    plan = split_group.assign(model_graph, {TENSOR: ranks}, {"cut": "column"})
    tensors = list(model_graph.output_tensors())

    def run(rank: split_group.Rank) -> Any:
        weights = {
            key: tf.constant(value[plan.parts(rank.coordinates)[key]])
            for key, value in values.items()
        }
        inputs = {0: tf.ones((5, 1), tf.float64)}
        part = sharded.run_nodes(
            plan, model_graph.nodes, inputs, weights, True, rank.groups, leaving=tensors
        )
        (number,) = tensors
        gathered = sharded.outputs(plan, {number: part.tensors[number]}, rank.groups)
        return gathered[number], part.changed

    results = split_group.together(split_group.ranks({TENSOR: ranks}), run)
    return np.array(results[0][0]), [changed for _, changed in results]


def test_each_part_draws_other_numbers_and_the_same_again() -> None:
    first = keras.Input((1,))
    cut = keras.layers.Dense(WIDTH, use_bias=False, kernel_initializer="ones", name="cut")(first)
    model_graph = recording.record(keras.Model(first, keras.layers.Dropout(0.3, seed=2)(cut)))
    values = {key: np.array(variable.value) for key, variable in model_graph.variables.items()}
    once, changed = drawn(model_graph, values, 4)
    again, _ = drawn(model_graph, values, 4)
    np.testing.assert_array_equal(once, again)
    parts = np.split(once, 4, axis=1)
    for index, part in enumerate(parts):
        assert all(not np.array_equal(part, other) for other in parts[:index])
        assert np.mean(part == 0) == pytest.approx(0.3, abs=0.05)
    assert set(np.round(np.unique(once), 9)) == {0.0, round(1 / 0.7, 9)}
    (seed,) = (key for key in values if key.startswith(recording.SEED_PREFIX))
    for output in changed:  # all ranks go on with one seed, which is that of the unsplit layer
        np.testing.assert_array_equal(output[seed], values[seed] + [0, 1])
    later, _ = drawn(model_graph, {**values, seed: np.array(changed[0][seed])}, 4)
    assert not np.array_equal(once, later)


class Drawing(keras.layers.Layer):
    """Adds what a function of its generator draws."""

    def __init__(self, draw: Callable[[Any, Any], Any]) -> None:
        super().__init__(name="drawing")
        self.draw = draw
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, rows: Any) -> Any:
        return rows + self.draw(tf.shape(rows), self.seeds)


def of_drawing(layer: Any) -> graph.Graph:
    first = keras.Input((3,))
    return recording.record(keras.Model(first, layer(keras.layers.Dense(3)(first))))


@pytest.mark.parametrize(
    ("layer", "operation"),
    [
        (lambda: Drawing(lambda dims, _: tf.random.normal(dims, dtype="float64")), "RandomStand"),
        (lambda: Drawing(lambda dims, _: tf.random.normal(dims, 0, 1, "float64", 4)), "RandomSt"),
        (
            lambda: Drawing(lambda dims, _: tf.function(tf.random.uniform)(dims, 0, 1, "float64")),
            "RandomUniform",
        ),
        (lambda: Drawing(lambda dims, _: keras.random.normal((3,))), "keras.random"),
        (
            lambda: keras.layers.Lambda(lambda rows: rows + keras.random.normal((3,))),
            "keras.random",
        ),
    ],
)
def test_what_draws_without_a_generator_is_refused(
    layer: Callable[[], Any], operation: str
) -> None:
    with pytest.raises(errors.UserCodeError, match=rf"draws by {operation}.* without a seed gen"):
        randomness.check(of_drawing(layer()))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Drawing(lambda dims, seeds: keras.random.normal((3,), seed=seeds)),
        lambda: Drawing(lambda dims, _: tf.random.stateless_normal(dims, (1, 2), dtype="float64")),
        lambda: keras.layers.Dropout(0.5),
        lambda: keras.layers.GaussianNoise(0.5),
    ],
)
def test_what_draws_from_a_generator_is_not(layer: Callable[[], Any]) -> None:
    randomness.check(of_drawing(layer()))
