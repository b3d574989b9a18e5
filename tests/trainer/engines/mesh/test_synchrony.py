"""BatchNormalization(synchronized=True) normalises by the whole batch."""

from typing import Any

import keras
import numpy as np
import pytest

from testing import repeats
from testing.trainer import ranks, weights
from tfparallel_trainer import errors
from tfparallel_trainer.objective import checks

TOLERANCE = 1e-8


def convolutional(synchronized: bool) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.8),
            keras.layers.Activation("relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(5),
            keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.8),
            keras.layers.Dense(1),
        ]
    )


def compiled(model: keras.Model) -> None:
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")


def examples() -> tuple[Any, Any, None]:
    random = np.random.default_rng(0)
    return random.normal(1.0, 2.0, size=(61, 6, 6, 2)), random.normal(size=(61, 1)), None


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", repeats.some([2, 3], [3]))
def test_it_equals_one_rank(count: int) -> None:
    # The last batch has one example: the other ranks take part with none.
    (member,), _ = ranks.run(
        ranks.module(lambda: convolutional(False), compiled), examples(), 1, batch=10
    )
    many, _ = ranks.run(
        ranks.module(lambda: convolutional(True), compiled), examples(), count, batch=10
    )
    expected = member.model.get_weights()
    for replica in many:
        assert weights.difference(replica.model.get_weights(), expected) <= TOLERANCE
        assert checks.advice(replica.model, count) == []


def test_what_keras_does_not_synchronise_is_refused() -> None:
    def masked() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((4, 2)),
                keras.layers.Masking(),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(1),
            ]
        )

    random = np.random.default_rng(0)
    data = random.normal(size=(4, 4, 2)), random.normal(size=(4, 4, 1)), None
    with pytest.raises(errors.UserCodeError, match="was not synchronised: Keras does not do it"):
        ranks.run(ranks.module(masked, compiled), data, 2, batch=4)


@pytest.mark.usefixtures("float64")
def test_a_rank_without_examples_gives_no_gradient() -> None:
    def mixed() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((6, 6, 2)),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(5),
                keras.layers.BatchNormalization(),  # the mean of no examples is NaN
                keras.layers.Dense(1),
            ]
        )

    many, _ = ranks.run(ranks.module(mixed, compiled), examples(), 3, batch=10)
    for replica in many:
        for weight in replica.model.trainable_weights:
            assert np.isfinite(weight.numpy()).all()
