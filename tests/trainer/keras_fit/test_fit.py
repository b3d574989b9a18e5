"""Our fit against Keras' own: the same arguments, the same weights, the same history."""

import inspect
import itertools
import json
import pathlib
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest

import tfparallel_trainer
from testing import paths, repeats
from testing.trainer import fit_support, keras_fit, weights
from testing.trainer import runs as trainings
from testing.trainer.models import fitted
from tfparallel_trainer import errors
from tfparallel_trainer.data import batches
from tfparallel_trainer.keras_fit import callbacks, supported_arguments

pytestmark = [
    # Keras' own callbacks read variables in a way that NumPy deprecates.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

SCRIPT = paths.TRAINER_MODELS / "fit_script.py"
TOGETHER = (
    "class_weight",
    "sample_weight",
    "validation_data",
    "steps_per_epoch",
    "EarlyStopping",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "Callback",
    "trainable",
    "two_inputs_two_outputs",
    "custom_loss",
    "gradient_accumulation",
    "averages",
    "SwapEMAWeights",
    "data_set",
    "endless_data_set",
    "generator",
    "changing_lengths",
    "PyDataset",
    "mixed_bfloat16",
    "mixed_float16",
)
"""The cases that several processes run."""
ALIKE = {
    "sample_weight": "class_weight",
    "LearningRateScheduler": "ReduceLROnPlateau",
    "endless_data_set": "data_set",
    "generator": "PyDataset",
    "mixed_bfloat16": "mixed_float16",
}
"""Cases of the long tier, and which one differs only in what no other process takes part in."""


def compare(
    result: keras_fit.Result, expected: keras_fit.Result, tolerance: float = weights.TOLERANCE
) -> None:
    for array, other in zip(result[0], expected[0], strict=True):
        assert array.dtype == other.dtype
        np.testing.assert_allclose(array, other, rtol=0, atol=tolerance)
    fit, other_fit = result[1], expected[1]
    assert fit["epoch"] == other_fit["epoch"]
    assert fit["params"] == other_fit["params"]
    assert list(fit["history"]) == list(other_fit["history"])
    for key, values in other_fit["history"].items():
        assert fit["history"][key] == pytest.approx(values, abs=tolerance, nan_ok=True), key


CHECKS = pytest.mark.parametrize("verify", ["Off", pytest.param("Auto", marks=pytest.mark.long)])
"""Checks pass and change nothing, which takes time."""


@CHECKS
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", fitted.CASES)
def test_alone_it_gives_what_keras_gives(name: str, verify: str) -> None:
    expected = keras_fit.train(name)
    case = fitted.CASES[name]
    model = case.build()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "steps_per_epoch is")
        warnings.filterwarnings("ignore", "Could not reach RemoteMonitor")
        warnings.filterwarnings("ignore", "A callback has set trainable")
        history = tfparallel_trainer.fit(
            model, **case.data(), shuffle=False, verbose=0, verify=verify, **case.arguments()
        )
    compare((model.get_weights(), keras_fit.history_of(history)), expected)
    assert history.model is model
    assert model.history is history


class NotedDataset(keras.utils.PyDataset):
    """Notes when its epochs begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return np.ones((8, 6)), np.zeros(8)

    def on_epoch_begin(self) -> None:
        self.notes.append("begin")

    def on_epoch_end(self) -> None:
        self.notes.append("end")


def test_keras_ends_an_epoch_of_a_py_dataset_before_the_first() -> None:
    epochs = ["begin", "end"] * 2
    data, data_of_keras = NotedDataset(), NotedDataset()
    build = fitted.CASES["PyDataset"].build
    build().fit(data_of_keras, epochs=2, verbose=0)
    tfparallel_trainer.fit(build(), data, epochs=2, verbose=0)
    assert data_of_keras.notes == ["end", *epochs]
    assert data.notes == epochs


@pytest.mark.usefixtures("float64")
def test_a_loss_is_scaled_as_by_keras_and_again_when_training_goes_on() -> None:
    case = fitted.CASES["mixed_float16_that_overflows"]
    arguments = {**case.data(), **case.arguments(), "shuffle": False, "verbose": 0}
    ours, keras_own = case.build(), case.build()
    for _ in range(2):
        keras_own.fit(**arguments)
        tfparallel_trainer.fit(ours, **arguments)
        pairs = zip(ours.optimizer.variables, keras_own.optimizer.variables, strict=True)
        for variable, other in pairs:
            np.testing.assert_array_equal(variable.numpy(), other.numpy())
    steps = 2 * 6 * 4
    assert 0 < int(ours.optimizer.iterations.numpy()) < steps, "some were left out"


@pytest.mark.parametrize(
    ("verify", "names"),
    [
        pytest.param("Off", [name for name in TOGETHER if name not in ALIKE], id="Off"),
        pytest.param("Off", [*ALIKE], id="alike", marks=pytest.mark.long),
        pytest.param("Auto", TOGETHER, id="Auto", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("float64")
def test_two_processes_give_what_keras_gives_in_one(
    tmp_path: pathlib.Path, runs: trainings.Runs, verify: str, names: Sequence[str]
) -> None:
    arguments = (str(SCRIPT), str(tmp_path), verify, *names)
    with runs.group(runs.environments(processes=2), arguments) as group:
        expected = {name: keras_fit.train(name) for name in names}
        group.finish(600)
    for name, result in expected.items():
        for task in ("chief-0", "worker-0"):
            saved = keras_fit.saved_weights(tmp_path / f"{name}-{task}.npz")
            history = json.loads((tmp_path / f"{name}-{task}.json").read_text())
            compare((saved, history), result, fitted.CASES[name].tolerance)


def refused(rows: Sequence[supported_arguments.SupportedArgument]) -> set[str]:
    return {row.name for row in rows if row.by_engine[0] is supported_arguments.Verdict.REFUSED}


def test_the_table_has_every_argument_and_each_is_run() -> None:
    names = list(inspect.signature(keras.Model.fit).parameters)[1:]
    assert sorted(row.name for row in fit_support.ARGUMENTS) == sorted(names)
    ours = inspect.signature(tfparallel_trainer.fit).parameters
    for name, parameter in inspect.signature(keras.Model.fit).parameters.items():
        if name != "self":
            assert ours[name].default == parameter.default
    assert list(ours)[1 : len(names) + 1] == names
    names_in_cases = {"shuffle", "verbose"}  # in every case
    for case in fitted.CASES.values():
        names_in_cases |= {*case.data(), *case.arguments()}
    assert names_in_cases >= set(names) - refused(fit_support.ARGUMENTS)


def test_the_table_has_every_callback_and_each_is_run_or_refused() -> None:
    callbacks_of_keras = {name for name in dir(keras.callbacks) if not name.startswith("_")}
    assert {row.name for row in supported_arguments.CALLBACKS} == callbacks_of_keras
    assert set(fitted.CASES) >= callbacks_of_keras - refused(supported_arguments.CALLBACKS) - {
        "CallbackList"
    }
    for row in supported_arguments.CALLBACKS:
        kind = getattr(keras.callbacks, row.name)
        for strategy, verdict in row.verdicts.items():
            if verdict is supported_arguments.Verdict.REFUSED:
                message = f"{row.name} cannot be honoured with {strategy}"
                with pytest.raises(errors.UserCodeError, match=message):
                    callbacks.checked([kind.__new__(kind)], strategy)
    with pytest.raises(errors.UserCodeError, match="BackupAndRestore cannot be honoured"):
        fit_with(callbacks=[keras.callbacks.BackupAndRestore("nowhere")])


@pytest.mark.usefixtures("float64")
def test_a_list_of_callbacks_is_taken_apart() -> None:
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    history = fit_with(callbacks=keras.callbacks.CallbackList([rates]), epochs=2)
    assert history.history["learning_rate"] == pytest.approx([0.01, 0.005])


def fit_with(**more: Any) -> Any:
    case = fitted.CASES["batch_size"]
    arguments = {**case.data(), "batch_size": 15, "verbose": 0, **more}
    return tfparallel_trainer.fit(case.build(), **arguments)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shuffle": "batch"}, "shuffle is 'batch': give True"),
        ({"y": None}, "The data has no targets (y)"),
        ({"y": None, "class_weight": {0: 1.0}}, "class_weight is given, and the data has no y"),
        ({"callbacks": [print]}, "callbacks holds <built-in function print>"),
        ({"validation_split": 1.0}, "leaves one part of 52 examples empty"),
        ({"class_weight": {}, "sample_weight": np.ones(52)}, "both given"),
        ({"epochs": 0}, "An argument of fit does not fit"),
        ({"x": iter([])}, "y is given, and x brings batches itself"),
        ({"x": iter([]), "y": None, "batch_size": None}, "x gives no batches"),
        ({"x": iter([1]), "y": None, "batch_size": None}, "gives batches of int"),
        (
            {**fitted.CASES["endless_data_set"].data(), "y": None, "batch_size": None},
            "never ends: give steps_per_epoch",
        ),
        ({"validation_data": 3}, "validation_data is int"),
    ],
)
def test_what_fit_cannot_take_is_said_in_a_sentence(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.UserCodeError, match=re.escape(message)):
        fit_with(**wrong)


def test_an_address_is_no_folder() -> None:
    with pytest.raises(
        errors.BadConfigurationError, match="output_dir is 'gs://b/run', an address"
    ):
        fit_with(output_dir="gs://b/run")


@pytest.mark.usefixtures("float64")
def test_a_generator_makes_one_epoch_and_then_has_ended() -> None:
    def batches() -> Any:
        yield from fitted.CASES["data_set"].data()["x"].as_numpy_iterator()

    history = fit_with(x=batches(), y=None, batch_size=None, epochs=1)
    assert history.epoch == [0]
    with pytest.raises(errors.UserCodeError, match="x has no more batches for epoch 2: give"):
        fit_with(x=batches(), y=None, batch_size=None, epochs=2)


def columns(*shapes: tuple[int, ...], dtype: str = "float64") -> Iterator[Any]:
    for shape in shapes:
        yield np.ones(shape, dtype), np.ones((shape[0], 1), dtype)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            columns((4, 3, 6), (4, 5, 6), (4, 5, 2)),
            "x gives an array of shape (4, 5, 2) where the first two batches have (None, None, 6)",
        ),
        (
            itertools.chain(columns((4, 3, 6), (4, 3, 6)), [(np.ones((4, 3, 6)),) * 3]),
            "x gives a batch of 3 arrays, and the first one has 2",
        ),
        (
            itertools.chain(columns((4, 6), (4, 6), dtype="int32"), columns((4, 6))),
            "x gives an array of float64 where the first batch has int32",
        ),
    ],
)
def test_batches_that_do_not_fit_the_first_two_are_reported(data: Any, message: str) -> None:
    opened = batches.opened(data, "x", None)
    assert opened is not None
    with pytest.raises(errors.UserCodeError, match=re.escape(message)):
        list(batches.BatchedDataset(opened, None, None).epoch(0))


def test_batches_take_the_types_of_the_first_one() -> None:
    opened = batches.opened(
        itertools.chain(columns((4, 6)), columns((4, 6), (2, 6), dtype="int8")), "x", None
    )
    assert opened is not None
    arrays = list(batches.BatchedDataset(opened, None, None).epoch(0))
    assert [(x.dtype, x.shape, y.dtype) for x, y, _ in arrays] == [
        ("float64", (4, 6), "float64"),
        ("float64", (4, 6), "float64"),
        ("float64", (2, 6), "float64"),
    ]


def test_what_is_no_compiled_model_is_said_in_a_sentence() -> None:
    data = fitted.CASES["batch_size"].data()
    bare = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    for model, message in (
        (bare, "not compiled"),
        (lambda: 3, "returns int"),
        (3, "was given int"),
    ):
        with pytest.raises(errors.UserCodeError, match=message):
            tfparallel_trainer.fit(model, **data, verbose=0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", repeats.some([2, 3], [2]))
def test_several_devices_give_what_keras_gives_on_one(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", str(devices))
    for name in ("EarlyStopping", "Callback", "data_set", "mixed_float16"):
        case = fitted.CASES[name]
        model = case.build()
        history = tfparallel_trainer.fit(
            model, **case.data(), shuffle=False, verbose=0, **case.arguments()
        )
        compare(
            (model.get_weights(), keras_fit.history_of(history)),
            keras_fit.train(name),
            case.tolerance,
        )
        assert history.model is model
