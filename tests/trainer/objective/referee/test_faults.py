"""The referee finds each kind of fault by itself, within its first four checks.

What the trainer does against these kinds otherwise, such as refusing them, is switched off.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import losses, ranks
from tfparallel_trainer import errors
from tfparallel_trainer.contract import job_file, verification
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import independence, loss, updates
from tfparallel_trainer.objective.replica import Replica

LAYERS, OPS = keras.layers, keras.ops
pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(autouse=True)
def unrefused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(independence, "check", lambda *_: None)
    monkeypatch.setattr(updates, "find", lambda replica, *_, **__: replica)


def data(examples: int = 8, width: int = 2) -> tuple[Any, Any, None]:
    random = np.random.default_rng(0)
    return random.normal(size=(examples, 3)), random.normal(size=(examples, width)), None


def dense(*between: Any, width: int = 2) -> Any:
    first = [keras.Input((3,)), LAYERS.Dense(4, "tanh")]
    return keras.Sequential([*first, *between, LAYERS.Dense(width)])


def compiled(model: Any) -> None:
    model.compile(keras.optimizers.SGD(0.1), "mse")


def checks_of(
    build: Callable[[], Any],
    compile_model: Callable[[Any], None] = compiled,
    examples: Any = None,
    *,
    count: int = 2,
    batch: int = 4,
    before: Callable[[int, list[Replica]], None] = lambda *_: None,
) -> Iterator[verification.Check]:
    """Train for eight steps on ranks of this process; gives the checks.

    `before` is called before each step, with its number and the replicas.
    """
    examples = data() if examples is None else examples
    module = ranks.module(build, compile_model)
    replicas = ranks.build(module, examples, count)
    source = ranks.feed_of(examples, count, batch)
    step = mesh_steps.MeshTrainStep(
        module, replicas, source.spec, batch, verify=job_file.Verify.AUTO
    )
    numbered = itertools.count()
    for epoch in range(8):
        for examples_of_step in source.epoch(epoch, 0):
            number = next(numbered)
            if number == 8:
                return
            before(number, replicas)
            check = step(number, examples_of_step, frozenset()).check
            if check is not None:
                yield check()


def fault_of(*arguments: Any, **named: Any) -> tuple[int, str]:
    """How many checks found nothing before one found a fault, and what it says."""
    passed = 0
    try:
        for _ in checks_of(*arguments, **named):
            passed += 1
    except errors.VerificationError as error:
        assert error.everywhere
        return passed, str(error)
    raise AssertionError(f"{passed} checks found nothing")


class ActivitySum(keras.layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(0.1 * OPS.sum(OPS.square(x)))
        return x


class Normalising(keras.layers.Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        return x - OPS.mean(x, 0) if training else x


@pytest.mark.parametrize("layer", [ActivitySum, Normalising])
def test_what_a_layer_does_with_the_batch_only_in_training_is_found(layer: Any) -> None:
    passed, sentence = fault_of(lambda: dense(layer()))
    assert passed == 0
    assert "depends on which examples are in a batch together" in sentence
    assert "gradients (sequential/dense/kernel" in sentence


def per_positive(y: Any, y_pred: Any) -> Any:
    return OPS.square(y - y_pred) / OPS.maximum(OPS.sum(y), 1.0)


def test_a_loss_whose_examples_are_coupled_by_rare_targets_is_found() -> None:
    x, y, _ = data(32, 6)
    rare = np.zeros_like(y)
    rare[[9, 14, 20, 27], [0, 2, 1, 5]] = 1.0  # none in the first batch
    passed, sentence = fault_of(
        lambda: dense(width=6),
        lambda model: model.compile("sgd", per_positive),
        (x, rare, None),
        batch=8,
    )
    assert passed < 4
    assert "depends on which examples are in a batch together" in sentence


class ScaledLoss(keras.losses.MeanSquaredError):
    def __call__(self, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().__call__(2.0 * y, y_pred, sample_weight)


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_class_that_the_trainer_does_not_call_as_keras_does_is_found(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terms(model: Any, names: tuple[str, ...]) -> list[loss.Term]:
        return [loss.Term(names[0], model.loss.call, loss.MEAN, "float64", 1.0)]

    monkeypatch.setattr(loss, "terms", terms)
    passed, sentence = fault_of(
        dense, lambda model: model.compile("sgd", ScaledLoss()), count=count, batch=4
    )
    assert passed == 0
    assert "computes the loss differently from Keras" in sentence


def test_a_variable_of_the_loss_that_only_the_chief_has_changed_is_found() -> None:
    def lower(number: int, replicas: list[Replica]) -> None:
        if number == 2:
            replicas[0].model.loss.alpha.assign(0.25)

    passed, sentence = fault_of(
        dense, lambda model: model.compile("sgd", losses.Weighted()), before=lower
    )
    assert passed == 2
    assert "alpha" in sentence
    assert "its value differs between replicas" in sentence


class Pruned(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        size, ones = (shape[-1],), "ones"
        self.kept = self.add_weight(shape=size, initializer=ones, dtype="bool", trainable=False)

    def call(self, x: Any) -> Any:
        return x * OPS.cast(self.kept, x.dtype)


def test_a_mask_of_bool_that_only_the_chief_has_changed_is_found() -> None:
    def prune(number: int, replicas: list[Replica]) -> None:
        if number == 2:
            replicas[0].model.layers[1].kept.assign([True, False, True, True])

    passed, sentence = fault_of(lambda: dense(Pruned()), before=prune)
    assert passed == 2
    assert "sequential/pruned" in sentence
    assert "its value differs between replicas" in sentence


def test_weights_that_are_frozen_on_the_chief_alone_are_found() -> None:
    def freeze(number: int, replicas: list[Replica]) -> None:
        if number == 2:
            replicas[0].model.layers[0].trainable = False

    passed, sentence = fault_of(dense, before=freeze)
    assert passed == 2
    assert "train other weights" in sentence


def spectral() -> Any:
    layer = LAYERS.SpectralNormalization(LAYERS.Dense(4, "tanh"))
    return keras.Sequential([keras.Input((3,)), layer, LAYERS.Dense(2)])


class CallCounter(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign(self.calls + 1)
        return x


@pytest.mark.parametrize(
    "build", [spectral, lambda: dense(CallCounter())], ids=["trained", "not trained"]
)
def test_what_a_rank_without_examples_does_not_assign_is_found(build: Any) -> None:
    passed, sentence = fault_of(build, examples=data(9))
    assert passed == 2  # the third batch has one example
    assert "a layer assigns it in its forward pass" in sentence


class FollowedCenter(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.center = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False, name="center"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.center.assign(0.9 * self.center + 0.1 * OPS.mean(x, 0))
        return x - OPS.stop_gradient(self.center.value)


def test_statistics_that_each_rank_gathers_for_itself_are_found() -> None:
    passed, sentence = fault_of(lambda: dense(FollowedCenter()))
    assert passed == 0
    assert "followed_center/center): a layer assigns it in its forward pass" in sentence


def test_an_optimizer_that_differs_between_replicas_is_found() -> None:
    first = itertools.count()

    def excluding(model: Any) -> None:
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
        if next(first) == 0:
            optimizer.exclude_from_weight_decay(var_names=["kernel"])
        model.compile(optimizer, "mse")

    passed, sentence = fault_of(dense, excluding)
    assert passed == 0
    assert "weights (sequential/dense/kernel, sequential/dense_1/kernel)" in sentence
    assert "the model differs between replicas or processes" in sentence


def test_a_vocabulary_in_another_order_is_found() -> None:
    orders = itertools.cycle([["a", "b", "c", "d"], ["d", "b", "a", "c"]])

    def build() -> Any:
        first = keras.Input((1,), dtype="string")
        places = LAYERS.StringLookup(vocabulary=next(orders))(first)
        x = LAYERS.Flatten()(LAYERS.Embedding(6, 4)(places))
        return keras.Model(first, LAYERS.Dense(2)(x))

    texts = np.array(["a", "b", "c", "d"] * 2)[:, None]
    passed, sentence = fault_of(build, examples=(texts, data()[1], None))
    assert passed == 0
    assert "the model differs between replicas or processes" in sentence
