"""Variables whose updates are made together get the numbers of Keras' optimizers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfparallel_trainer.objective import packed_updates

STEPS = 5
SHAPES = ((3, 4), (4,), (), (packed_updates.MOST_ELEMENTS + 1,), (7, 2))
"""One is too large to be joined with others, and one has a sparse gradient."""
SPARSE = 4

optimizers = keras.optimizers

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optimizers.SGD(0.1),
    "momentum": lambda: optimizers.SGD(0.1, momentum=0.9, clipnorm=0.5),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)),
    "amsgrad": lambda: optimizers.Adam(0.1, amsgrad=True, global_clipnorm=1.0),
    "adamw": lambda: optimizers.AdamW(0.1, use_ema=True, ema_overwrite_frequency=2),
    "accumulated": lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "rmsprop": lambda: optimizers.RMSprop(0.1, momentum=0.9, centered=True),
    "lion": lambda: optimizers.Lion(0.1),
    "not packed": lambda: optimizers.Adamax(0.1),
}


def trained(optimizer: Any, apply: Callable[..., None]) -> tuple[list[Any], dict[str, int]]:
    random = np.random.default_rng(0)
    variables = [keras.Variable(random.normal(size=shape)) for shape in SHAPES]
    optimizer.build(variables)
    has_sparse = not optimizer.gradient_accumulation_steps

    @tf.function(autograph=False)
    def step(gradients: Any) -> None:
        gradients = [*gradients]
        if has_sparse:
            rows, shape = tf.constant([1, 2, 2, 0, 4, 5, 6]), tf.constant(SHAPES[SPARSE])
            gradients[SPARSE] = tf.IndexedSlices(gradients[SPARSE], rows, shape)
        apply(optimizer, gradients, variables)

    for _ in range(STEPS):
        step([tf.constant(random.normal(size=shape)) for shape in SHAPES])
    state = [*variables, *optimizer.variables]
    counts: dict[str, int] = {}
    for operation in step.get_concrete_function(
        [tf.TensorSpec(shape, tf.float64) for shape in SHAPES]
    ).graph.get_operations():
        counts[operation.type] = counts.get(operation.type, 0) + 1
    return [variable.value.numpy() for variable in state], counts


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_that_of_the_optimizer(name: str) -> None:
    expected, _ = trained(OPTIMIZERS[name](), lambda optimizer, *pair: optimizer.apply(*pair))
    state, _ = trained(OPTIMIZERS[name](), packed_updates.apply)
    for array, other in zip(state, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-14, atol=1e-14)


@pytest.mark.usefixtures("float64")
def test_small_variables_share_their_operations() -> None:
    _, apart = trained(OPTIMIZERS["adam"](), lambda optimizer, *pair: optimizer.apply(*pair))
    _, together = trained(OPTIMIZERS["adam"](), packed_updates.apply)
    assert apart["Sqrt"] - together["Sqrt"] == 2 * (len(SHAPES) - 3)


def test_an_optimizer_of_the_users_is_applied_as_it_is() -> None:
    class CustomSGD(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            assert tuple(variable.shape) in SHAPES
            super().update_step(gradient, variable, learning_rate)

    trained(CustomSGD(0.1), packed_updates.apply)
