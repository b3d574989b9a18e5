"""Callbacks that change which weights are trained: as in Keras' fit, or refused."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import tfparallel_trainer
from tfparallel_trainer import errors

X = np.random.default_rng(1).normal(size=(9, 3)).astype("float32")


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", "2")


class AtSecondEpoch(keras.callbacks.Callback):
    """Does something as the second epoch begins."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change
        self.trainable: list[bool] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.trainable.append(self.model.layers[0].trainable)
        if epoch == 1:
            self.change(self.model)


def train(fit: Any, change: Callable[[Any], Any], **options: Any) -> tuple[Any, list[bool]]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(3, trainable=False, kernel_regularizer="l2"),
            keras.layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, **options), "mse")
    callback = AtSecondEpoch(change)
    history = fit(
        model,
        X,
        X,
        batch_size=4,
        epochs=3,
        validation_data=(X, X),
        shuffle=False,
        callbacks=[callback],
        verbose=0,
    )
    return history, callback.trainable


def exchange(model: Any) -> None:
    model.layers[0].trainable = True
    model.layers[1].bias.trainable = False


def test_trainable_changes_nothing_before_the_next_compile() -> None:
    """Even an evaluation's penalty, and what a callback sees later, are those of Keras' fit."""
    expected, expected_seen = train(keras.Model.fit, exchange)
    with pytest.warns(UserWarning, match="changes nothing before the model is compiled again"):
        history, trainable = train(tfparallel_trainer.fit, exchange)
    for array, other in zip(history.model.get_weights(), expected.model.get_weights(), strict=True):
        np.testing.assert_allclose(array, other, atol=1e-6)
    assert history.history["val_loss"] == pytest.approx(expected.history["val_loss"], rel=1e-5)
    assert trainable == expected_seen == [False, False, True]
    flags, expected_flags = (
        [weight.trainable for weight in weights_model.model.weights]
        for weights_model in (history, expected)
    )
    assert flags == expected_flags == [True, True, True, False]


def test_averages_are_of_the_weights_that_were_trained() -> None:
    averaged, _ = train(tfparallel_trainer.fit, lambda _: None, use_ema=True)
    with pytest.warns(UserWarning, match="changes nothing before"):
        history, _ = train(tfparallel_trainer.fit, exchange, use_ema=True)
    for array, other in zip(history.model.get_weights(), averaged.model.get_weights(), strict=True):
        np.testing.assert_array_equal(array, other)


def retrace(model: Any) -> None:
    model.layers[0].trainable = True
    model.make_train_function(force=True)


@pytest.mark.filterwarnings("ignore:A callback has set trainable")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda model: model.compile("sgd", "mse"), "has compiled the model"),
        (retrace, "has set trainable and made the training function again"),
        (lambda model: model.layers[1].enable_lora(1), "has changed which weights the model has"),
    ],
    ids=["compile", "trace", "lora"],
)
def test_what_would_train_otherwise_is_refused(change: Callable[[Any], Any], problem: str) -> None:
    with pytest.raises(errors.UserCodeError, match=problem) as raised:
        train(tfparallel_trainer.fit, change)
    assert raised.value.everywhere
    assert "compile the model and train again" in str(raised.value)
