"""Losses that layers add, accumulated gradients and averaged weights, on several ranks."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing import repeats
from testing.trainer import ranks, weights
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import evaluate, replica

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras


class AddsMean(keras.layers.Layer):
    """Adds a mean over its examples to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.3 * keras.ops.mean(keras.ops.square(x)))
        return x


def regularised() -> keras.Model:
    shared = keras.layers.Dense(4, "tanh", activity_regularizer="l2", kernel_regularizer="l1")
    start = keras.Input((4,))
    inner = keras.Sequential([keras.Input((4,)), AddsMean(), shared])
    return keras.Model(start, keras.layers.Dense(1)(AddsMean()(inner(shared(start)))))


def examples() -> tuple[Any, Any, None]:
    random = np.random.default_rng(0)
    return random.normal(size=(31, 4)), random.normal(size=(31, 1)), None


def compile_with(**more: Any) -> Callable[[keras.Model], None]:
    def compiled(model: keras.Model) -> None:
        model.compile(keras.optimizers.Adam(**{"learning_rate": 0.02, **more}), "mse")

    return compiled


def plain_loop(
    compiled: Callable[[keras.Model], None], build: Callable[[], keras.Model], batch: int
) -> tuple[keras.Model, list[float]]:
    """Keras' own training over the examples in their order, once."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = build()
    compiled(model)
    x, y, _ = examples()
    losses = [
        float(model.train_on_batch(x[first : first + batch], y[first : first + batch]))
        for first in range(0, len(x), batch)
    ]
    return model, losses


def difference(rank_replica: replica.Replica, model: keras.Model) -> float:
    return weights.difference(rank_replica.model.get_weights(), model.get_weights())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", repeats.some([1, 2, 4], [4]))
def test_added_losses_are_those_of_one_process(count: int) -> None:
    expected, _ = plain_loop(compile_with(), regularised, 7)
    module = ranks.module(regularised, compile_with())
    replicas, outcomes = ranks.run(module, examples(), count, 7)
    assert max(difference(rank_replica, expected) for rank_replica in replicas) <= weights.TOLERANCE
    assert all(list(outcome.losses) == ["loss"] for outcome in outcomes)
    x, y, _ = examples()
    spec = ranks.feed_of(examples(), count, 7)
    results = mesh_steps.MeshEvaluator(module, replicas, spec.spec).run(
        ranks.feed_of((x[:28], y[:28], None), count, 7).epoch(0, 0)
    )
    evaluated = expected.evaluate(x[:28], y[:28], batch_size=7, verbose=0)
    assert results["loss"] == pytest.approx(evaluated, rel=1e-9)


@pytest.mark.usefixtures("float64")
def test_accumulated_gradients_are_those_of_one_process() -> None:
    """So are the rates of a schedule and the averages, which both follow batches."""
    compiled = compile_with(
        learning_rate=keras.optimizers.schedules.ExponentialDecay(0.02, 1, 0.5),
        gradient_accumulation_steps=3,
        global_clipnorm=0.1,
        weight_decay=0.1,
        use_ema=True,
    )
    expected, _ = plain_loop(compiled, regularised, 5)
    replicas, _ = ranks.run(ranks.module(regularised, compiled), examples(), 3, 5)
    assert max(difference(rank_replica, expected) for rank_replica in replicas) <= weights.TOLERANCE
    optimizers = [state.optimizer for state in (*(member.model for member in replicas), expected)]
    *states, plain = [
        [variable.numpy() for variable in optimizer.variables] for optimizer in optimizers
    ]
    assert max(weights.difference(state, plain) for state in states) <= weights.TOLERANCE


@pytest.mark.usefixtures("float64")
def test_averages_are_evaluated_and_training_keeps_its_weights() -> None:
    compiled = compile_with(use_ema=True, ema_momentum=0.9)
    module = ranks.module(regularised, compiled)
    replicas, _ = ranks.run(module, examples(), 2, 7)
    before = [rank_replica.model.get_weights() for rank_replica in replicas]
    batches = ranks.feed_of(examples(), 2, 31)
    results = mesh_steps.MeshEvaluator(module, replicas, batches.spec).run(batches.epoch(0, 0))
    for rank_replica, values in zip(replicas, before, strict=True):
        for a, b in zip(rank_replica.model.get_weights(), values, strict=True):
            np.testing.assert_array_equal(a, b)
    expected, _ = plain_loop(compiled, regularised, 7)
    expected.optimizer.finalize_variable_values(expected.trainable_variables)
    x, y, _ = examples()
    assert results["loss"] == pytest.approx(
        expected.evaluate(x, y, batch_size=31, verbose=0), rel=1e-9
    )
    assert evaluate.adopt_averages(replicas[0].model)
    assert difference(replicas[0], expected) <= weights.TOLERANCE


def test_weights_without_a_step_have_no_averages() -> None:
    module = ranks.module(regularised, compile_with(use_ema=True))
    (rank_replica,) = ranks.build(module, examples(), 1)
    before = rank_replica.model.get_weights()
    assert not evaluate.adopt_averages(rank_replica.model)
    for a, b in zip(rank_replica.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("float64")
def test_a_regularised_embedding_is_added_up_on_all_ranks() -> None:
    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((3,), dtype="int64"),
                keras.layers.Embedding(7, 2, embeddings_regularizer="l2"),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )

    random = np.random.default_rng(0)
    data = random.integers(0, 7, size=(21, 3)), random.normal(size=(21, 1)), None
    module = ranks.module(build, compile_with())
    (member,), _ = ranks.run(module, data, 1, batch=10)
    many, _ = ranks.run(module, data, 2, batch=10)
    for rank_replica in many:
        assert difference(rank_replica, member.model) <= weights.TOLERANCE


def alone() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), AddsMean()])


@pytest.mark.usefixtures("float64")
def test_layers_alone_give_the_loss_of_data_without_targets() -> None:
    x, _, _ = examples()
    keras.utils.set_random_seed(1)
    expected = alone()
    expected.compile(keras.optimizers.Adam(0.02))
    losses = [float(expected.train_on_batch(x[first : first + 7])) for first in range(0, len(x), 7)]
    module = ranks.module(alone, lambda model: model.compile(keras.optimizers.Adam(0.02)))
    replicas, outcomes = ranks.run(module, (x, None, None), 4, 7)
    assert difference(replicas[0], expected) <= weights.TOLERANCE
    assert len(losses) == len(outcomes)
    assert outcomes[0].loss == pytest.approx(losses[0], rel=1e-9)
