"""Models of other devices have what the caller's model has, or fit refuses it."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import tfparallel_trainer
from tfparallel_trainer import errors

X = np.random.default_rng(1).normal(size=(8, 3))


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch, float64: None) -> None:
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", "2")


@keras.saving.register_keras_serializable("twins")
class ScaledByProcess(keras.layers.Layer):
    """Multiplies by a number that its configuration does not have."""

    factor = 1.0

    def call(self, x: Any) -> Any:
        return x * self.factor


def train(fit: Any, change: Callable[[Any], Any], optimizer: Any) -> list[Any]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "tanh", bias_initializer="ones", kernel_regularizer="l2"),
            ScaledByProcess(),
            keras.layers.Dense(3, bias_initializer="ones"),
        ]
    )
    change(model)
    model.compile(optimizer(model), "mse")
    fit(model, X, X, epochs=2, batch_size=4, shuffle=False, verbose=0)
    trained: list[Any] = model.get_weights()
    return trained


def adam(_: Any) -> Any:
    return keras.optimizers.AdamW(0.01, weight_decay=0.5)


def by_name(model: Any) -> Any:
    optimizer = adam(model)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def by_variable(model: Any) -> Any:
    optimizer = adam(model)
    optimizer.exclude_from_weight_decay(var_list=[model.weights[0], model.weights[3]])
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)


def freeze_layer(model: Any) -> None:
    model.layers[0].trainable = False
    model.layers[0].kernel.trainable = True


def regularize(model: Any) -> None:
    """Freeze one weight, and change what Keras reads of the weights, and what it does not."""
    model.layers[0].bias.trainable = False
    model.layers[2].kernel.regularizer = keras.regularizers.L2(0.5)
    model.layers[2].bias.constraint = keras.constraints.MaxNorm(0.5)
    model.layers[0].kernel_regularizer = None


def nothing(_: Any) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("change", "optimizer"),
    [
        (nothing, by_variable),
        (freeze_layer, by_name),
        (regularize, adam),
    ],
)
def test_what_no_configuration_has_is_on_all_devices(change: Any, optimizer: Any) -> None:
    expected = train(keras.Model.fit, change, optimizer)
    trained = train(tfparallel_trainer.fit, change, optimizer)
    for array, other in zip(trained, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=0, atol=1e-10)


def test_what_cannot_be_copied_is_refused() -> None:
    def scale(model: Any) -> None:
        model.layers[1].factor = 3.0

    with pytest.raises(
        errors.UserCodeError, match="differ in the layer scaled_by_process"
    ) as raised:
        train(tfparallel_trainer.fit, scale, adam)
    assert "give fit a function that builds and compiles the model" in str(raised.value)
