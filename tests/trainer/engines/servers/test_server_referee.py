"""The steps of a worker are compared with one process, by what its servers hold afterwards."""

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import cases, losses, ranks, split_models
from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import verification
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.engines.servers import server_referee
from tfparallel_trainer.objective import metric_sums, replica, tracing, train_step
from tfparallel_trainer.objective.referee import reference_model

pytestmark = split_models.MARKS


class Decays(keras.layers.Layer):
    """Assigns its kernel in the forward pass."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 4), name="kernel")

    def call(self, x: Any) -> Any:
        self.kernel.assign(0.9 * self.kernel)
        return keras.ops.tanh(x @ self.kernel)


def check(
    middle: Callable[[], Any],
    loss: Callable[[], Any] = keras.losses.MeanSquaredError,
    change: Callable[[Any], None] = lambda _: None,
) -> verification.Check:
    """Make a step as a worker does, whose assignments in the forward pass are lost; compare it.

    Before it, `change` may write what a callback can reach of the model that servers have.
    """

    def build_model() -> Any:
        layers = [keras.layers.Dropout(0.2), middle(), keras.layers.Dense(2)]
        return keras.Sequential([keras.Input((3,)), *layers])

    def compile_model(model: Any) -> None:
        model.compile(keras.optimizers.Adam(0.01), loss(), metrics=["mae"])

    random = np.random.default_rng(0)
    part = (random.normal(size=(6, 3)), random.normal(size=(6, 2)), None)
    sample = batch_division.rows(part, range(1))
    module = user.Module(
        pathlib.Path(__file__), {"build_model": build_model, "compile_model": compile_model}
    )
    mesh = shape.MeshShape(generation=ranks.generation())
    served = replica.build(module, mesh, 0, ranks.DEVICES[0], cases.SEED, sample)
    single = server_referee.build(module, mesh, cases.SEED, served.model, sample)
    referee = server_referee.ServerReferee(
        served, single, batch_division.spec(part), 1, always=False
    )
    served.closures.extend(tracing.trace(served, batch_division.spec(part)).closures)
    change(served.model)
    assert referee.omission(0) is None
    assert referee.is_due(6)
    before = referee.state()
    batch = tuple(None if array is None else tf.constant(array) for array in part)
    computed = train_step.compute_local_gradients(served, batch, tf.constant(0, tf.int64))
    served.optimizer.apply(computed.gradients, served.model.trainable_variables)
    measured = metric_sums.results(served, computed.isolated.contributions)
    return referee(0, batch_division.Batch(6, [part]), before, float(computed.loss), measured)


def test_a_right_step_equals_one_process_with_its_random_numbers() -> None:
    right = check(lambda: keras.layers.Dense(4, "tanh"))
    assert right.step == 1
    assert {*right.differences} == {*verification.Quantity} - {
        verification.Quantity.GRADIENTS,
        verification.Quantity.NON_TRAINABLE_STATE,
    }
    assert max(quantity.value for quantity in right.differences.values()) < 1e-13


def test_a_variable_of_the_loss_that_a_callback_has_written_is_that_of_one_process() -> None:
    right = check(
        lambda: keras.layers.Dense(4, "tanh"),
        losses.Weighted,
        lambda model: model.loss.alpha.assign(0.25),
    )
    assert max(quantity.value for quantity in right.differences.values()) < 1e-13


def test_a_weight_that_the_forward_pass_assigns_ends_the_job() -> None:
    with pytest.raises(errors.VerificationError, match=r"kernel.*assigns it in its forward pass"):
        check(Decays)


def test_a_model_that_the_chief_cannot_hold_is_said_to_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_model, "MOST_WEIGHTS", 10)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    module = user.Module(pathlib.Path(__file__), {})
    single = server_referee.build(module, shape.MeshShape(), cases.SEED, model, None)
    assert single == "a model of more than 10 weights, which the chief does not hold as a whole"
