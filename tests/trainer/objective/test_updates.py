"""Weights that the forward pass assigns are those of one process, or the model is refused."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from testing.trainer import weights as compared
from tfparallel_trainer import errors, layers
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.servers import worker_steps as server_steps
from tfparallel_trainer.engines.strategy import strategy_steps
from tfparallel_trainer.objective import replica, train_step, updates

LAYERS, OPS = keras.layers, keras.ops
BATCH = 4
RANDOM = np.random.default_rng(0)
EXAMPLES = RANDOM.normal(size=(9, 3)), RANDOM.normal(size=(9, 2)), None
"""The last batch has one, so that some ranks have none."""

pytestmark = pytest.mark.usefixtures("float64")


class Counter(keras.layers.Layer):
    """Counts its calls in training, and weighs what it adds to the loss by that."""

    def build(self, _: Any) -> None:
        self.count = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign_add(1)
        self.add_loss(0.01 * OPS.cast(self.count, x.dtype) * OPS.mean(OPS.square(x)))
        return x


class ClippedKernel(keras.layers.Layer):
    """Clips the kernel that it trains; what it reads before counts for the gradient too."""

    def build(self, sizes: Any) -> None:
        self.kernel = self.add_weight(
            shape=(sizes[-1], 3), initializer="glorot_uniform", regularizer="l2"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        before = OPS.sum(self.kernel)
        if training:
            self.kernel.assign(OPS.clip(self.kernel, -0.3, 0.3))
        return OPS.matmul(x, self.kernel) + before


class Moving(keras.layers.Layer):
    """Follows the mean of its inputs, and adds them up."""

    def build(self, sizes: Any) -> None:
        self.mean = self.add_weight(shape=sizes[1:], initializer="zeros", trainable=False)
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        output = x - self.mean + 0.01 * self.total
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * OPS.mean(x, 0))
            self.total.assign(self.total + OPS.sum(x))
        return output


class AveragedCodebook(keras.layers.Layer):
    """Follows the examples of each code by moving averages of their number and sum."""

    def __init__(self, sums: Callable[[Any], Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self.sums = sums

    def build(self, sizes: Any) -> None:
        start = keras.initializers.RandomNormal(seed=3)
        self.codes = self.add_weight(shape=(3, sizes[-1]), initializer=start, trainable=False)
        self.counts = self.add_weight(shape=(3,), initializer="ones", trainable=False)
        self.totals = self.add_weight(shape=(3, sizes[-1]), initializer="ones", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        distances = OPS.sum(OPS.square(x[:, None] - self.codes[None]), -1)
        chosen = OPS.one_hot(OPS.argmin(distances, -1), 3, dtype=x.dtype)
        output = OPS.matmul(chosen, self.codes)
        if training:
            counts, totals = self.sums((OPS.sum(chosen, 0), OPS.matmul(OPS.transpose(chosen), x)))
            self.counts.assign(0.9 * self.counts + 0.1 * counts)
            self.totals.assign(0.9 * self.totals + 0.1 * totals)
            self.codes.assign(self.totals / self.counts[:, None])
        return x + OPS.stop_gradient(output - x)


class Normalised(keras.layers.Layer):
    """Takes the mean of the whole batch away while it trains."""

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        total, count = layers.sum_over_replicas((OPS.sum(x, 0), tf.cast(tf.shape(x)[0], x.dtype)))
        return x - total / count


class Hidden(keras.layers.Layer):
    """Counts in a variable that Keras does not know."""

    def build(self, _: Any) -> None:
        self.count = tf.Variable(0.0, dtype=tf.float64)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign_add(1.0)
        return x * (1 + self.count)


def model_of(*make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: keras.Sequential(
        [keras.Input((3,)), *(factory() for factory in make), LAYERS.Dense(2)]
    )


def spectral() -> Any:
    return LAYERS.SpectralNormalization(LAYERS.Dense(4, "tanh"))


RIGHT = {
    "spectral": model_of(spectral),
    "counter": model_of(Counter),
    "clipped": model_of(ClippedKernel),
    "moving": model_of(Moving),
    "codebook": model_of(lambda: AveragedCodebook(layers.sum_over_replicas)),
    "normalised": model_of(lambda: LAYERS.Dense(4), Normalised),
    "with BatchNormalization": model_of(
        Counter, lambda: LAYERS.BatchNormalization(synchronized=True)
    ),
}


def compiled(model: Any) -> None:
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")


def plain_weights(build: Callable[[], Any]) -> list[Any]:
    """Those that Keras' own loop gives."""
    (single,) = ranks.build(ranks.module(build, compiled), EXAMPLES, 1)
    for first in range(0, 9, BATCH):
        single.model.train_on_batch(*(part[first : first + BATCH] for part in EXAMPLES[:2]))
    return list(single.model.get_weights())


@pytest.mark.parametrize("name", RIGHT)
def test_ranks_assign_what_one_process_does(name: str) -> None:
    expected = plain_weights(RIGHT[name])
    replicas, _ = ranks.run(ranks.module(RIGHT[name], compiled), EXAMPLES, 3, BATCH)
    for member in replicas:
        assert compared.difference(member.model.get_weights(), expected) <= 1e-13


@pytest.mark.parametrize("name", ["clipped", "spectral", "counter", "codebook"])
def test_a_worker_of_servers_assigns_what_one_process_does(name: str) -> None:
    expected = plain_weights(RIGHT[name])
    (worker,) = ranks.build(ranks.module(RIGHT[name], compiled), EXAMPLES, 1)
    applied = tf.Variable(0, dtype=tf.int64)
    strategy = tf.distribute.get_strategy()
    module = ranks.module(RIGHT[name], compiled)
    traced = server_steps.WorkerFunctions(strategy, module, worker, applied, None)

    @tf.function
    def step(part: Any) -> None:
        traced._apply(train_step.compute_local_gradients(worker, part, applied))

    for batch in ranks.feed_of(EXAMPLES, 1, BATCH).epoch(0, 0):
        step(batch.parts[0])
    assert compared.difference(worker.model.get_weights(), expected) <= 1e-13


@pytest.mark.parametrize("name", ["counter", "codebook"])
def test_replicas_of_a_strategy_assign_what_one_process_does(name: str) -> None:
    expected = plain_weights(RIGHT[name])
    module, strategy = ranks.module(RIGHT[name], compiled), ranks.strategy(3)
    batches = ranks.feed_of(EXAMPLES, 3, BATCH)
    with strategy.scope():
        mirror = replica.build(module, shape.MeshShape(), 0, "", 1, batches.sample())
    mirror = updates.find(mirror, batches.sample(), divided=True)
    step = strategy_steps.StrategyTrainStep(
        strategy_steps.ReplicatedModel(strategy, module, mirror), batches.spec
    )
    for number, batch in enumerate(batches.epoch(0, 0)):
        step(number, batch, frozenset())
    assert compared.difference(mirror.model.get_weights(), expected) <= 1e-13


WRONG = {
    "codebook": (
        lambda: AveragedCodebook(lambda sums: sums, name="book"),
        r"layer book assigns .*book",
    ),
    "hidden": (Hidden, r"hidden/count is a tf.Variable that the layer assigns"),
}


@pytest.mark.parametrize(("make", "sentence"), WRONG.values(), ids=WRONG)
def test_what_ranks_cannot_join_is_refused_where_they_divide_batches(
    make: Callable[[], Any], sentence: str
) -> None:
    module = ranks.module(model_of(make), compiled)
    ranks.run(module, EXAMPLES, 1, BATCH)
    with pytest.raises(errors.UserCodeError, match=sentence):
        ranks.build(module, EXAMPLES, 2)


def test_workers_that_would_undo_each_others_steps_are_refused() -> None:
    (single,) = ranks.build(ranks.module(RIGHT["clipped"], compiled), EXAMPLES, 1)
    server_steps.check(single, 1)
    with pytest.raises(errors.UserCodeError, match=r"A layer assigns .* while it trains"):
        server_steps.check(single, 2)
    server_steps.check(dataclasses.replace(single, updates=None), 2)


def test_a_step_that_is_left_out_assigns_nothing() -> None:
    x = EXAMPLES[0].copy()
    x[3] = np.nan
    module = ranks.module(RIGHT["clipped"], compiled)
    before = ranks.build(module, EXAMPLES, 1)[0].model.get_weights()
    (member, _), _ = ranks.run(
        module, (x[:BATCH], EXAMPLES[1][:BATCH], None), 2, 4, leaves_out=True
    )
    assert compared.difference(member.model.get_weights(), before) == 0


def stateful() -> Any:
    return keras.Sequential(
        [keras.Input(batch_shape=(4, 3, 2)), LAYERS.LSTM(3, stateful=True), LAYERS.Dense(1)]
    )


SEQUENCES = RANDOM.normal(size=(12, 3, 2)), RANDOM.normal(size=(12, 1)), None


def test_one_process_goes_on_from_the_state_of_the_batch_before() -> None:
    module = ranks.module(stateful, compiled)
    (plain,) = ranks.build(module, SEQUENCES, 1)
    for first in range(0, 12, BATCH):
        plain.model.train_on_batch(*(part[first : first + BATCH] for part in SEQUENCES[:2]))
    (member,), _ = ranks.run(module, SEQUENCES, 1, BATCH)
    expected = plain.model.get_weights()
    assert any(np.any(state.numpy()) for state in plain.model.layers[0].states)
    assert compared.difference(member.model.get_weights(), expected) <= 1e-13


def test_a_state_of_places_in_a_batch_is_refused_where_batches_are_divided() -> None:
    with pytest.raises(errors.UserCodeError, match=r"The layer lstm\w* is stateful: .* divide"):
        ranks.build(ranks.module(stateful, compiled), SEQUENCES, 2)


class Called(keras.layers.Layer):
    """Counts all calls."""

    def build(self, _: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return x * self.calls


def test_building_a_model_counts_for_nothing() -> None:
    (single,) = ranks.build(ranks.module(model_of(Called), compiled), EXAMPLES, 1)
    assert single.model.layers[0].calls.numpy() == 0
