"""Losses and layers that take the batch as a whole are found whatever the first examples hold."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import ranks
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.objective import checks, independence, replica

LAYERS, OPS, LOSSES = keras.layers, keras.ops, keras.losses
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 3))
REAL = RANDOM.normal(size=(64, 4))
BITS = (RANDOM.uniform(size=(64, 4)) < 0.5) * 1.0
CLASSES = RANDOM.integers(0, 4, 64)
ONE_HOT = np.eye(4)[CLASSES]
IMAGES = RANDOM.uniform(size=(32, 6, 6, 3))
OBJECTS = (RANDOM.uniform(size=(32, 6, 6, 1)) < 0.3) * 1.0
SMALL = keras.initializers.RandomNormal(stddev=1e-6)
MISSING = np.where(RANDOM.uniform(size=REAL.shape) < 0.02, -1.0, REAL)


class NormalisedByBatch(keras.layers.Layer):
    """Normalises by the batch, and only while it trains."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x - OPS.mean(x, 0) if training else x


class Activity(keras.layers.Layer):
    """Adds the sum of its activity, or the mean, to the loss while it trains."""

    def __init__(self, reduce: Callable[[Any], Any]) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(0.1 * self.reduce(OPS.square(x)))
        return x


class Balanced(keras.Model):
    """A model with a step of its own, whose loss weighs the batch's classes while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.head = LAYERS.Dense(4)

    def call(self, x: Any) -> Any:
        return self.head(x)

    def training_phases(self) -> list[Any]:
        from tfparallel_trainer import Phase

        def losses(part: Any, training: bool) -> Any:
            x, y, _ = part
            y = OPS.cast(y, "float32")
            losses_of_examples = OPS.mean(OPS.square(self(x) - y), -1)
            return losses_of_examples * OPS.mean(y) if training else losses_of_examples

        return [Phase(losses, self.head, self.optimizer)]


class ScaledDistance(keras.layers.Layer):
    """Adds how far examples are from their mean, by a scale that begins with zero."""

    def build(self, _: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="zeros")

    def call(self, x: Any) -> Any:
        return x + self.scale * (x - OPS.mean(x, 0))


def dense(*layers: Callable[[], Any], activation: str | None = None) -> Callable[[], Any]:
    def build() -> Any:
        between = [make() for make in layers]
        return keras.Sequential(
            [keras.Input((3,)), LAYERS.Dense(8), *between, LAYERS.Dense(4, activation)]
        )

    return build


def masks() -> Any:
    convolution = LAYERS.Conv2D(1, 3, padding="same", activation="sigmoid")
    return keras.Sequential([keras.Input((6, 6, 3)), convolution])


def dropout() -> Any:
    return LAYERS.Dropout(0.5)


def per_positive(y: Any, y_pred: Any) -> Any:
    return OPS.square(y - y_pred) / OPS.maximum(OPS.sum(y), 1.0)


def balanced(y: Any, y_pred: Any) -> Any:
    positive = OPS.mean(y)
    weights = OPS.where(y > 0.5, 1 - positive, positive)
    return OPS.mean(weights * OPS.square(y - y_pred), -1)


def over_present(y: Any, y_pred: Any) -> Any:
    present = OPS.cast(OPS.not_equal(y, -1.0), y_pred.dtype)
    return OPS.sum(present * OPS.square(y - y_pred)) / OPS.maximum(OPS.sum(present), 1.0)


def triplet(y: Any, y_pred: Any) -> Any:
    y = OPS.reshape(y, (-1,))
    distances = OPS.sum(OPS.square(y_pred[:, None] - y_pred[None]), -1)
    same = OPS.cast(OPS.equal(y[:, None], y[None]), distances.dtype)
    return OPS.relu(OPS.max(distances * same, 1) - OPS.min(distances + 10 * same, 1) + 0.5)


def over_constant(y: Any, y_pred: Any) -> Any:
    return OPS.sum(OPS.square(y - y_pred)) / 4.0


def hardest(y: Any, y_pred: Any) -> Any:
    return OPS.mean(OPS.top_k(OPS.mean(OPS.square(y - y_pred), -1), 2)[0])


def check(build: Callable[[], Any], loss: Any, x: Any, y: Any, **options: Any) -> None:
    """Try a model as on a rank whose part are the first examples."""
    module = ranks.module(build, lambda model: model.compile("sgd", loss))
    count, targets = options.get("count", 4), options.get("targets")
    sample = x[:1], y[:1], None
    built = replica.build(module, shape.MeshShape(), 0, "", 1, sample)
    before = [value.numpy() for value in built.state()]
    try:
        independence.check(built, (x[:count], y[:count], None), targets)
    finally:
        for value, unchanged in zip(built.state(), before, strict=True):
            np.testing.assert_array_equal(value.numpy(), unchanged)


IN_TRAINING = {
    "own normalisation": (dense(NormalisedByBatch), "mse"),
    "own normalisation among dropout": (dense(dropout, NormalisedByBatch, dropout), "mse"),
    "sum": (dense(lambda: Activity(OPS.sum)), "mse"),
    "sum among dropout": (
        dense(LAYERS.BatchNormalization, dropout, lambda: Activity(OPS.sum)),
        "mse",
    ),
    "own step": (Balanced, None),
    "zeros behind it": (
        dense(NormalisedByBatch, lambda: LAYERS.Dense(8, kernel_initializer="zeros")),
        "mse",
    ),
    "small weights behind it": (
        dense(NormalisedByBatch, lambda: LAYERS.Dense(8, kernel_initializer=SMALL)),
        "mse",
    ),
    "a scale of zero": (dense(ScaledDistance), "mse"),
}


@pytest.mark.parametrize(("build", "loss"), IN_TRAINING.values(), ids=IN_TRAINING)
@pytest.mark.parametrize("count", [4, 1])
def test_what_only_training_does_is_tried(build: Any, loss: Any, count: int) -> None:
    with pytest.raises(errors.UserCodeError, match="while it trains"):
        check(build, loss, X, REAL, count=count)


SEPARATE = {
    "BatchNormalization and dropout": (dense(LAYERS.BatchNormalization, dropout), "mse"),
    "mean in training": (
        dense(LAYERS.BatchNormalization, dropout, lambda: Activity(OPS.mean), dropout),
        "mse",
    ),
    "noise": (dense(lambda: LAYERS.GaussianNoise(0.3), lambda: Activity(OPS.mean)), "mse"),
}


@pytest.mark.parametrize(("build", "loss"), SEPARATE.values(), ids=SEPARATE)
def test_randomness_and_announced_layers_do_not_disturb_the_trial(build: Any, loss: Any) -> None:
    check(build, loss, X, REAL)


@pytest.mark.parametrize("count", [2, 3])
def test_parts_of_whole_numbers_are_no_repetitions(count: int) -> None:
    """Numbers of words are not varied: of two examples, a trial has several of each."""
    with pytest.raises(errors.UserCodeError, match="depends while it trains on which of them are"):
        check(dense(NormalisedByBatch), "mse", np.round(3 * X), REAL, count=count)


WHOLE = {
    "few positives": (dense(), per_positive, X, (RANDOM.uniform(size=(64, 4)) < 0.02) * 1.0),
    "no positive": (dense(), per_positive, X, 0 * BITS),
    "Dice": (masks, LOSSES.Dice(), IMAGES, OBJECTS),
    "Dice, sum": (masks, LOSSES.Dice(reduction="sum"), IMAGES, OBJECTS),
    "Dice, no object": (masks, LOSSES.Dice(), IMAGES, 0 * OBJECTS),
    "Tversky, no object": (masks, LOSSES.Tversky(), IMAGES, 0 * OBJECTS),
    "Circle": (dense(), LOSSES.Circle(), X, CLASSES),
    "triplet": (dense(), triplet, X, CLASSES),
    "triplet, one class": (dense(), triplet, X, 0 * CLASSES),
    "triplet, all classes differ": (dense(), triplet, X, np.arange(64)),
    "balance of classes": (dense(), balanced, X, BITS),
    "balance of classes, one class": (dense(), balanced, X, 0 * BITS),
    "missing targets": (dense(), over_present, X, MISSING),
    "sum over a constant": (dense(), over_constant, X, REAL),
    "hardest examples": (dense(), hardest, X, REAL),
}


@pytest.mark.parametrize(("build", "loss", "x", "y"), WHOLE.values(), ids=WHOLE)
def test_a_loss_of_the_whole_batch_is_refused(build: Any, loss: Any, x: Any, y: Any) -> None:
    with pytest.raises(errors.UserCodeError, match=r"^The loss .* is no mean"):
        check(build, loss, x, y, targets=y)


BY_EXAMPLE = {
    "MeanSquaredError": (None, REAL),
    "MeanAbsoluteError": (None, REAL),
    "MeanAbsolutePercentageError": (None, REAL),
    "MeanSquaredLogarithmicError": ("softplus", np.abs(REAL)),
    "CosineSimilarity": (None, REAL),
    "Huber": (None, REAL),
    "LogCosh": (None, REAL),
    "Hinge": (None, 2 * BITS - 1),
    "SquaredHinge": (None, BITS),
    "CategoricalHinge": ("softmax", ONE_HOT),
    "KLDivergence": ("softmax", ONE_HOT),
    "Poisson": ("softplus", np.abs(REAL)),
    "BinaryCrossentropy": ("sigmoid", BITS),
    "BinaryFocalCrossentropy": ("sigmoid", BITS),
    "CategoricalCrossentropy": ("softmax", ONE_HOT),
    "CategoricalFocalCrossentropy": ("softmax", ONE_HOT),
    "SparseCategoricalCrossentropy": ("softmax", CLASSES),
}


@pytest.mark.parametrize(("name", "activation", "y"), [(k, *v) for k, v in BY_EXAMPLE.items()])
@pytest.mark.parametrize("is_own", [False, True])
def test_a_loss_of_each_example_is_not_refused(
    name: str, activation: str | None, y: Any, is_own: bool
) -> None:
    loss = getattr(LOSSES, name)()

    def own_loss(target: Any, prediction: Any) -> Any:
        return loss.call(target, prediction)

    check(dense(activation=activation), own_loss if is_own else loss, X, y)


@pytest.mark.parametrize("kind", [LOSSES.Dice, LOSSES.Tversky])
def test_a_loss_of_each_mask_is_not_refused(kind: Any) -> None:
    check(masks, kind(axis=(1, 2, 3)), IMAGES, OBJECTS, targets=OBJECTS)


class MaskedLoss(keras.losses.MeanSquaredError):
    """Leaves out missing targets in `__call__`, which is what Keras calls."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        valid = OPS.cast(OPS.not_equal(y_true, -1.0), y_pred.dtype)
        return super().__call__(y_true * valid, y_pred * valid, sample_weight)


class OverPresent(keras.losses.Loss):
    """Divides by the targets of the batch that are there; it has no `call`."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return over_present(y_true, y_pred)


def missing_first() -> Any:
    y = REAL[:10].copy()
    y[::2, 0] = -1.0
    return y


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
@pytest.mark.parametrize("weight", [None, RANDOM.uniform(0.5, 2.0, 10)])
def test_a_loss_is_called_as_keras_calls_it(reduction: str, weight: Any) -> None:
    examples = X[:10], missing_first(), weight
    module = ranks.module(
        dense(),
        lambda model: model.compile(keras.optimizers.SGD(0.1), MaskedLoss(reduction=reduction)),
    )
    (plain,) = ranks.build(module, examples, 1)
    for first in range(0, 10, 4):
        plain.model.train_on_batch(*(None if a is None else a[first : first + 4] for a in examples))
    for count in (1, 2):
        (member, *_), _ = ranks.run(module, examples, count, 4)
        for value, expected in zip(
            member.model.get_weights(), plain.model.get_weights(), strict=True
        ):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-13)


def test_a_loss_that_replicas_cannot_divide_as_keras_calls_it_is_refused() -> None:
    with pytest.raises(errors.UserCodeError, match=r"^The loss .* is no mean"):
        check(dense(), OverPresent(), X, MISSING, targets=MISSING)


class Old(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients(
            [(0.1 * gradient, other) for gradient, other in grads_and_vars]
        )


def test_an_optimizer_that_keras_would_apply_otherwise_is_refused() -> None:
    model = dense()()
    model.compile(Old(), "mse")
    with pytest.raises(
        errors.UserCodeError, match=r"Old \(test_whole_batch.py:\d+\) overrides apply_gradients"
    ):
        checks.check(model)
