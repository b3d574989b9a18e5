"""Losses, gradients and weights that are not finite numbers."""

import pathlib
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import launch, normalised, ranks, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits
from tfparallel_trainer.objective import state

pytestmark = pytest.mark.usefixtures("runs")


@pytest.mark.usefixtures("float64")
def test_a_step_that_is_left_out_changes_nothing() -> None:
    x, y, _ = normalised.examples()
    broken = x.copy()
    broken[2 * normalised.BATCH + 1] = np.nan
    user_module = ranks.module(normalised.build, normalised.compile_model)
    whole, outcomes = ranks.run(
        user_module, (broken, y, None), 2, normalised.BATCH, leaves_out=True
    )
    assert [outcome.finite for outcome in outcomes] == [True, True, False, True, True]
    kept = np.r_[0 : 2 * normalised.BATCH, 3 * normalised.BATCH : 5 * normalised.BATCH]
    without, _ = ranks.run(user_module, (x[kept], y[kept], None), 2, normalised.BATCH)
    for model, other in zip(whole, without, strict=True):
        for a, b in zip(model.model.get_weights(), other.model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        metrics, expected = (replica.model.get_metrics_result() for replica in (model, other))
        assert metrics == expected


def without_gradient(y: Any, y_pred: Any) -> Any:
    return keras.ops.sqrt(0 * keras.ops.square(y - y_pred))  # 0, and its gradient is 0 / 0


def test_a_gradient_alone_can_be_at_fault() -> None:
    user_module = ranks.module(
        normalised.build, lambda model: model.compile("sgd", without_gradient)
    )
    (first, _), outcomes = ranks.run(user_module, normalised.examples(), 2, 30)
    assert [(outcome.loss, outcome.finite) for outcome in outcomes] == [(0.0, False)]
    assert not state.finiteness(first)()


def test_loss_scaling_leaves_a_step_out_on_all_ranks() -> None:
    def scaled(model: keras.Model) -> None:
        inner = keras.optimizers.SGD(0.1, global_clipnorm=0.5)
        model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**100), "mse")

    x, y, _ = normalised.examples()
    x[0] = 1e9  # overflows with this scale, on the first rank only
    user_module = ranks.module(
        lambda: keras.Sequential([keras.Input((3,)), normalised.last()]), scaled
    )
    replicas, outcomes = ranks.run(
        user_module, (x[: normalised.BATCH], y[: normalised.BATCH], None), 2, normalised.BATCH
    )
    assert [outcome.finite for outcome in outcomes] == [True]
    fresh = ranks.build(user_module, (x, y, None), 2)
    for replica, untouched in zip(replicas, fresh, strict=True):
        for a, b in zip(replica.model.get_weights(), untouched.model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
        assert float(replica.optimizer.dynamic_scale) == 2.0**99
        assert int(replica.optimizer.inner_optimizer.iterations) == 0


MODEL = """
import keras, numpy
def build_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
def compile_model(model):
    model.compile(keras.optimizers.SGD(RATE), "mse")
def training_data():
    x = numpy.ones((64, 2))
    x[17] = numpy.nan if RATE < 1 else 1
    return x, numpy.ones((64, 3))
"""


def train(
    folder: pathlib.Path, rate: float, **trainer: object
) -> tuple[launch.Ended, dict[str, np.ndarray]]:
    """Run on two devices; gives how it ended and the newest checkpoint."""
    (folder / "model.py").write_text(MODEL.replace("RATE", str(rate)))
    spec = {
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": 1, "keep": 1000},
        **trainer,
    }
    environments = launch.environments(folder, folder, spec, devices=2, strategy="Mirrored")
    with trainings.Runs(folder).group(environments) as group:
        (ended,) = group.wait(90)
    newest = sorted((folder / "output" / "checkpoints").glob("step-*"))[-1]
    return ended, weights.of_files(newest)


def test_training_stops_before_the_checkpoint_is_spoilt(tmp_path: pathlib.Path) -> None:
    ended, saved = train(tmp_path, 0.1, epochs=1)
    assert ended.code == exits.Exit.NON_FINITE, ended
    assert "the loss is nan: training stopped, and the last good checkpoint is that" in ended.errors
    step = int(ended.errors.split("In step ", 1)[1].split()[0])
    assert f"is that of step {step - 1}." in ended.errors
    assert all(np.isfinite(array).all() for array in saved.values())


def test_weights_that_overflow_are_not_saved(tmp_path: pathlib.Path) -> None:
    ended, saved = train(tmp_path, 1e30, steps=50)
    assert ended.code == exits.Exit.NON_FINITE, ended
    assert all(np.isfinite(array).all() for array in saved.values())


def test_training_goes_on_without_the_step(tmp_path: pathlib.Path) -> None:
    ended, saved = train(tmp_path, 0.1, epochs=2, onNonFiniteLoss="Continue")
    assert ended.code == 0, ended
    assert ended.output.count("its update is left out") == 2
    assert all(np.isfinite(array).all() for array in saved.values())
    assert isinstance(launch.summary(tmp_path).metrics["loss"], float)
