"""A loss in which examples of a batch depend on each other is refused where replicas divide it."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import ranks
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.strategy import strategy_steps
from tfparallel_trainer.objective import replica

LAYERS, OPS = keras.layers, keras.ops
EXAMPLES = 12


def scores() -> Any:
    """Each example against all of its batch."""
    first = keras.Input((3,))
    x = LAYERS.Dense(4)(first)
    return keras.Model(first, OPS.matmul(x, OPS.transpose(x)))


def dense() -> Any:
    first = keras.Input((3,))
    return keras.Model(first, LAYERS.Dense(4, "softmax")(first))


class AddsFunction(keras.layers.Layer):
    """Adds what a function makes of its inputs to the loss."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        self.add_loss(self.function(x))
        return x


def adding(function: Callable[[Any], Any]) -> Callable[[], Any]:
    def build() -> Any:
        first = keras.Input((3,))
        return keras.Model(first, LAYERS.Dense(4)(AddsFunction(function)(first)))

    return build


class Draws(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(OPS.shape(x), seed=self.seeds)


def random() -> Any:
    first = keras.Input((3,))
    return keras.Model(first, LAYERS.Dense(4)(Draws()(first)))


def normalised() -> Any:
    first = keras.Input((3,))
    x = LAYERS.BatchNormalization(synchronized=True)(LAYERS.Dense(4)(first))
    return keras.Model(first, LAYERS.Dropout(0.5)(x))


def in_batch(_: Any, y_pred: Any) -> Any:
    labels = OPS.arange(OPS.shape(y_pred)[0])
    return keras.losses.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)


def contrastive(y: Any, y_pred: Any) -> Any:
    near = OPS.matmul(y_pred, OPS.transpose(y_pred))
    return OPS.mean(OPS.square(near - OPS.mean(y)))


def mean(x: Any) -> Any:
    return OPS.mean(OPS.sum(x**2, -1))


def product_of_means(x: Any) -> Any:
    return OPS.mean(OPS.mean(x, 0) * OPS.mean(x**2, 0))


def run(build: Callable[[], Any], loss: Any, count: int, strategy: Any = None) -> float:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(EXAMPLES, 3)), generator.uniform(size=(EXAMPLES, 4))
    module = ranks.module(build, lambda model: model.compile("sgd", loss))
    if strategy is None:
        _, outcomes = ranks.run(module, (x, y, None), count, EXAMPLES)
        return outcomes[0].loss
    batches = ranks.feed_of((x, y, None), count, EXAMPLES)
    with strategy.scope():
        mirror = replica.build(module, shape.MeshShape(), 0, "", 1, batches.sample())
    before = [value.numpy() for value in mirror.state()]
    step = strategy_steps.StrategyTrainStep(
        strategy_steps.ReplicatedModel(strategy, module, mirror), batches.spec
    )
    (batch,) = batches.epoch(0, 0)
    try:
        return step(0, batch, frozenset()).loss
    except errors.UserCodeError:
        for value, unchanged in zip(mirror.state(), before, strict=True):
            np.testing.assert_array_equal(value.numpy(), unchanged)
        raise


DEPENDENT = {
    "output": (scores, in_batch, r"The loss .* is no mean over examples"),
    "loss": (dense, contrastive, r"The loss .* is no mean over examples"),
    "added": (adding(product_of_means), "mse", "add_loss is no mean over the examples"),
}


@pytest.mark.parametrize(("build", "loss", "sentence"), DEPENDENT.values(), ids=DEPENDENT)
def test_a_loss_that_needs_the_whole_batch_is_refused_on_several_replicas(
    build: Callable[[], Any], loss: Any, sentence: str
) -> None:
    assert np.isfinite(run(build, loss, 1))
    with pytest.raises(errors.UserCodeError, match=sentence):
        run(build, loss, 2)


@pytest.mark.parametrize(("build", "loss", "sentence"), DEPENDENT.values(), ids=DEPENDENT)
def test_it_is_refused_under_a_strategy_before_anything_changes(
    build: Callable[[], Any], loss: Any, sentence: str
) -> None:
    assert np.isfinite(run(build, loss, 1, ranks.strategy(1)))
    with pytest.raises(errors.UserCodeError, match=sentence):
        run(build, loss, 3, ranks.strategy(3))


@pytest.mark.parametrize("build", [dense, adding(mean), random, normalised])
def test_independent_examples_are_divided_by_a_strategy(build: Callable[[], Any]) -> None:
    assert np.isfinite(run(build, "mse", 3, ranks.strategy(3)))


@pytest.mark.parametrize("build", [dense, adding(mean), random])
def test_examples_that_are_independent_are_divided(build: Callable[[], Any]) -> None:
    assert np.isfinite(run(build, "mse", 2))
