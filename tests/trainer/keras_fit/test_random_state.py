"""What a script draws at random is its own, before and after fit."""

import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfparallel_trainer
from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import outputs

X = np.random.default_rng(1).normal(size=(24, 5))
Y = X.sum(1, keepdims=True)
Draws = list[float]


def model() -> Any:
    built = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), Late()])
    built.compile("sgd", "mse")
    return built


class Late(keras.layers.Layer):
    """Draws the seed of its weights when it is built."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 1), initializer="glorot_uniform")

    def call(self, inputs: Any) -> Any:
        return inputs @ self.kernel


def draws() -> Draws:
    """A number of each generator that a random search may use."""
    return [
        random.random(),  # noqa: S311
        float(np.random.uniform()),
        float(tf.random.uniform(())),
        float(tf.random.uniform((), seed=5)),
        float(keras.random.uniform(())),
    ]


def train(layer: Any) -> Any:
    return tfparallel_trainer.fit(layer, X, Y, batch_size=8, epochs=1, verbose=0).model


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("by_function", [True, False])
def test_trials_of_a_random_search_differ(
    devices: int, *, by_function: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", str(devices))
    keras.utils.set_random_seed(11)
    drawn, first = [], []
    for _ in range(3):
        drawn.append(draws())
        searched = model()
        if not by_function:
            searched.build((None, 5))
            first.append(searched.get_weights())
        train(model if by_function else searched)
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 3, drawn
    assert len({weights[0].tobytes() for weights in first}) == len(first)
    assert len({weights[-1].tobytes() for weights in first}) == len(first)


@pytest.mark.parametrize("devices", [1, 2])
def test_fit_with_a_function_leaves_the_generators_of_the_script(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", str(devices))
    keras.utils.set_random_seed(11)
    draws()
    expected = draws()
    keras.utils.set_random_seed(11)
    draws()
    train(model)
    assert draws() == expected


def test_weights_that_are_built_in_fit_differ_between_trials() -> None:
    keras.utils.set_random_seed(11)
    late = [train(model()).get_weights()[-1].tobytes() for _ in range(3)]
    assert len(set(late)) == 3


def test_a_function_builds_the_same_model_for_the_same_seed() -> None:
    array_of_first, other = (train(model).get_weights() for _ in range(2))
    for array, expected in zip(array_of_first, other, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_fit_on_several_devices_leaves_settings_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", "2")
    before = keras.config.is_interactive_logging_enabled()
    keras.config.disable_interactive_logging()
    try:
        train(model)
        assert not keras.config.is_interactive_logging_enabled()
    finally:
        if before:
            keras.config.enable_interactive_logging()


def drawn(process: launch.Ended) -> list[list[str]]:
    """What the operations of each step drew in a process."""
    lines = (process.output + process.errors).splitlines()
    return [line.split()[1:] for line in lines if line.startswith("drawn ")]


def test_operations_without_a_seed_differ_between_ranks_and_repeat_between_runs(
    runs: trainings.Runs,
) -> None:
    job = {"steps": 3, "globalBatchSize": 4, "processes": 2}
    once, again = (
        [drawn(process) for process in runs.finish("noise.py", folder=folder, **job).ended]
        for folder in ("once", "again")
    )
    assert once == again
    first, second = once
    first, second = first[-3:], second[-3:]  # after those of trials before step 1
    for here, there in zip(first, second, strict=True):
        assert not set(here) & set(there), once
    numbers = {number for steps in (first, second) for step in steps for number in step}
    assert len(numbers) == 24


def test_a_resumed_run_draws_from_keras_what_the_first_one_would_have(
    runs: trainings.Runs,
) -> None:
    job = {"globalBatchSize": 4, "checkpoint": {"claim": "c", "everySteps": 1}}
    [whole] = runs.finish("noise.py", folder="whole", steps=4, **job).ended
    first = runs.finish("noise.py", folder="parts", steps=2, **job)
    (first.folder / "output" / outputs.SUMMARY).unlink()  # as if it had been ended behind step 2
    [process] = runs.finish("noise.py", folder="parts", steps=4, **job).ended
    assert [step[2:] for step in drawn(process)] == [step[2:] for step in drawn(whole)[2:]]
