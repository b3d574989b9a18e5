"""How a script ends that calls fit, when something comes between."""

import contextlib
import csv
import json
import os
import pathlib
import signal
import sys
import threading
from typing import Any

import keras
import numpy as np
import pytest

import tfparallel_trainer
from testing import invocation, paths
from testing.trainer import keras_fit, launch, weights
from testing.trainer import runs as trainings
from testing.trainer.models import fitted
from tfparallel_trainer.contract import exits

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

EPOCH_STEPS = 4
"""Of the 52 examples."""


def script(name: str, *arguments: object) -> tuple[str, ...]:
    """The arguments of Python that run a script of the tests' models."""
    return str(paths.TRAINER_MODELS / name), *map(str, arguments)


def trained(epochs: int) -> list[Any]:
    """The weights that Keras' own fit gives in one process."""
    case = fitted.CASES["epochs"]
    model = case.build()
    arguments = {**case.arguments(), "epochs": epochs}
    model.fit(**case.data(), **arguments, shuffle=False, verbose=0)
    return list(model.get_weights())


@pytest.mark.usefixtures("float64")
def test_a_script_that_is_asked_to_end_goes_on_where_it_was(runs: trainings.Runs) -> None:
    output = runs.folder / "output"

    def start(attempt: int, epochs: int) -> launch.Group:
        environments = runs.environments(folder=str(attempt), processes=2, attempt=attempt)
        return runs.group(environments, script("fit_long.py", output, epochs))

    with start(1, launch.ENDLESS) as group:
        group.wait_for_output(0, "Epoch 4/")
        group.processes[1].send_signal(signal.SIGTERM)
        ended = group.wait()
    assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 2, ended

    epochs = launch.newest(runs.folder) // EPOCH_STEPS + 4
    with start(2, epochs) as group:
        chief, _ = group.finish()
    assert "resuming after step" in chief.output
    saved = keras_fit.saved_weights(output / "weights.npz")
    assert weights.difference(saved, trained(epochs)) <= weights.TOLERANCE


def test_a_loss_that_is_no_number_ends_all_processes(runs: trainings.Runs) -> None:
    command = script("fit_long.py", runs.folder / "output", launch.ENDLESS, "nan")
    with runs.group(runs.environments(processes=2), command) as group:
        ended = group.wait()
    for process in ended:
        assert process.code == exits.Exit.NON_FINITE, ended
        assert "the loss is nan" in process.errors


def test_a_model_that_is_built_too_early_is_refused(runs: trainings.Runs) -> None:
    command = script("fit_long.py", runs.folder / "output", launch.ENDLESS, "early")
    with runs.group(runs.environments(processes=2)[:1], command) as group:
        (chief,) = group.wait()
    assert chief.code == exits.Exit.USER_ERROR, chief
    assert "tfparallel_trainer.start() the first line" in chief.errors


def test_the_operator_imports_no_tensorflow_with_the_package() -> None:
    program = "import sys, tfparallel_trainer; print('tensorflow' in sys.modules)"
    done = invocation.execute(sys.executable, "-c", program, check=True)
    assert done.stdout == "False\n"


@pytest.mark.usefixtures("float64")
def test_a_strategy_of_the_script_is_used_and_its_model_gets_the_weights(
    runs: trainings.Runs,
) -> None:
    environments = runs.environments(processes=2)
    with runs.group(environments, script("fit_strategy.py", runs.folder), new=True) as group:
        group.finish()
    expected, _ = keras_fit.train("EarlyStopping")
    for task in ("chief", "worker"):
        saved = keras_fit.saved_weights(runs.folder / f"{task}.npz")
        assert weights.difference(saved, expected) <= weights.TOLERANCE


def test_a_module_may_bring_callbacks(runs: trainings.Runs) -> None:
    run = runs.finish("observed.py", processes=2, epochs=9, globalBatchSize=15)
    assert run.summary.epochs == 3  # the first was the best
    with (run.output / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["learning_rate"]) for row in rows] == [0.05, 0.025, 0.0125]
    assert float(rows[2]["val_loss"]) > float(rows[0]["val_loss"])


def open_descriptors() -> dict[str, str]:
    """The file descriptors of this process, each with what it is open to."""
    descriptors = {}
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this listing
            descriptors[entry.name] = str(entry.readlink())
    return descriptors


@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").is_dir(), reason="needs Linux")
def test_fit_leaves_no_thread_and_no_descriptor_behind(tmp_path: pathlib.Path) -> None:
    case = fitted.CASES["batch_size"]

    def train(name: str) -> None:
        arguments = {**case.data(), "batch_size": 26, "epochs": 1, "verbose": 0}
        tfparallel_trainer.fit(case.build(), **arguments, output_dir=tmp_path / name)

    train("first")  # starts what TensorFlow keeps for the life of the process
    descriptors, threads = open_descriptors(), set(threading.enumerate())
    for name in ("second", "third"):
        train(name)
    assert open_descriptors().items() <= descriptors.items()
    assert set(threading.enumerate()) <= threads


@pytest.mark.long
@pytest.mark.skipif(not pathlib.Path("/proc/self/fd").is_dir(), reason="needs Linux")
def test_a_hundred_calls_leave_no_thread_and_no_descriptor_behind(tmp_path: pathlib.Path) -> None:
    def train(number: int) -> None:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = np.zeros((4, 2)), np.zeros((4, 1))
        folder = tmp_path / str(number) if number % 2 else None
        tfparallel_trainer.fit(model, *data, batch_size=4, verbose=0, output_dir=folder)

    for number in range(2):
        train(number)
    descriptors, threads = open_descriptors(), set(threading.enumerate())
    for number in range(100):
        train(number)
    assert open_descriptors().items() <= descriptors.items()
    assert set(threading.enumerate()) <= threads


def test_fit_leaves_signals_as_the_script_has_them(tmp_path: pathlib.Path) -> None:
    case = fitted.CASES["batch_size"]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        tfparallel_trainer.fit(
            case.build(), **case.data(), batch_size=52, verbose=0, output_dir=tmp_path
        )
        assert signal.set_wakeup_fd(before) == writing
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def with_servers(runs: trainings.Runs, workers: int, command: tuple[str, ...]) -> launch.Group:
    environments = runs.server_environments(workers=workers, servers=1)
    return runs.group(list(environments.values()), command)


@pytest.mark.usefixtures("float64")
def test_with_servers_the_chief_alone_goes_on_after_fit(runs: trainings.Runs) -> None:
    name = "several_callbacks"
    command = script("fit_servers.py", runs.folder, "function", name)
    with with_servers(runs, 1, command) as group:
        chief, *others = group.finish()
    assert "after fit" in chief.output
    assert all("after fit" not in process.output for process in others)
    expected, fit = keras_fit.train(name)  # one worker makes the steps of one process
    saved = keras_fit.saved_weights(runs.folder / "chief.npz")
    assert weights.difference(saved, expected) <= weights.TOLERANCE
    history = json.loads((runs.folder / "chief.json").read_text())["history"]
    for key, values in fit["history"].items():
        assert history[key] == pytest.approx(values, abs=1e-10), key


def test_with_servers_a_model_that_is_built_already_is_refused(runs: trainings.Runs) -> None:
    command = script("fit_servers.py", runs.folder, "model", "epochs")
    with with_servers(runs, 1, command) as group:
        ended = group.wait()
    assert {process.code for process in ended} == {exits.Exit.USER_ERROR}, ended
    assert "Give fit a function that builds the model" in ended[0].errors


def test_callbacks_hold_with_several_workers_that_do_not_wait(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    with with_servers(runs, 2, script("fit_watched.py", tmp_path)) as group:
        group.finish()
    watched = json.loads((tmp_path / "results.json").read_text())
    # EarlyStopping: the first epoch stays the best, and its weights are put back.
    assert watched["epochs"] == [0, 1, 2]
    assert {"accuracy", "loss", "staleness_mean"} <= watched["history"].keys()
    assert watched["restored"] == 0
    # ModelCheckpoint: what is saved is what the servers have when every step of the epoch is made.
    assert watched["saved"] == [0, 0, 0]
    # on_train_batch_end: each batch once and in order, with the mean of the steps made by then.
    assert [batch for batch, _, _ in watched["batches"]] == [*range(12)] * 3
    assert all(0 < loss < 10 and 0 <= accuracy <= 1 for _, loss, accuracy in watched["batches"])
    assert watched["rates"] == pytest.approx([0.1 * 0.99**step for step in range(36)], rel=1e-5)
