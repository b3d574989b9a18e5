"""How a script ends that calls fit, when something comes between."""

import csv
import json
import pathlib
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from testing import paths
from testing.trainer import keras_fit, launch
from testing.trainer import runs as trainings
from testing.trainer.models import fitted
from tfparallel_trainer.contract import exits

pytestmark = [
    pytest.mark.usefixtures("runs"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

SCRIPT = paths.TRAINER_MODELS / "fit_long.py"
EPOCH_STEPS = 4
"""Of the 52 examples."""


def arguments(folder: pathlib.Path, *more: str, epochs: int = launch.ENDLESS) -> tuple[str, ...]:
    return str(SCRIPT), str(folder / "output"), str(epochs), *more


def trained(epochs: int) -> list[Any]:
    """The weights that Keras' own fit gives in one process."""
    case = fitted.CASES["epochs"]
    model = case.build()
    arguments = {**case.arguments(), "epochs": epochs}
    model.fit(**case.data(), **arguments, shuffle=False, verbose=0)
    return list(model.get_weights())


@pytest.mark.usefixtures("float64")
def test_a_script_that_is_asked_to_end_goes_on_where_it_was(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    def start(attempt: str, epochs: int) -> launch.Group:
        environments = launch.environments(tmp_path / attempt, SCRIPT.parent, {}, processes=2)
        given = arguments(tmp_path, epochs=epochs)
        return runs.group(environments, given)

    with start("first", launch.ENDLESS) as group:
        group.wait_for_output(0, "Epoch 4/")
        group.processes[1].send_signal(signal.SIGTERM)
        ended = group.wait()
    assert [one.code for one in ended] == [exits.Exit.PREEMPTED] * 2, ended

    epochs = launch.newest(tmp_path) // EPOCH_STEPS + 4
    with start("second", epochs) as group:
        weights = trained(epochs)
        ended = group.wait()
    assert [one.code for one in ended] == [exits.Exit.DONE] * 2, ended
    assert "resuming after step" in ended[0].output
    with np.load(tmp_path / "output" / "weights.npz") as arrays:
        for key, wanted in zip(arrays.files, weights, strict=True):
            assert float(np.abs(arrays[key] - wanted).max()) <= 1e-10


@pytest.mark.parametrize(
    ("wrong", "processes", "code", "said"),
    [
        ("nan", 2, exits.Exit.NON_FINITE, "the loss is nan"),
        ("early", 2, exits.Exit.USER_ERROR, "tfparallel_trainer.start() the first line"),
    ],
)
def test_what_goes_wrong_is_said_in_a_sentence_and_an_exit_code(
    wrong: str,
    processes: int,
    code: exits.Exit,
    said: str,
    tmp_path: pathlib.Path,
    runs: trainings.Runs,
) -> None:
    environments = launch.environments(tmp_path, SCRIPT.parent, {}, processes=processes)
    with runs.group(environments, arguments(tmp_path, wrong)) as group:
        ended = group.wait()
    assert {one.code for one in ended} <= {code, exits.Exit.PEER_LOST}, ended
    assert ended[0].code == code
    assert said in ended[0].errors


def test_the_operator_imports_no_tensorflow_with_the_package() -> None:
    program = "import sys, tfparallel_trainer; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"


@pytest.mark.usefixtures("float64")
def test_a_strategy_of_the_script_is_used_and_its_model_gets_the_weights(
    tmp_path: pathlib.Path,
    runs: trainings.Runs,
) -> None:
    script = SCRIPT.with_name("fit_strategy.py")
    environments = launch.environments(tmp_path, script.parent, {}, processes=2)
    command = (str(script), str(tmp_path))
    with runs.group(environments, command) as group:
        weights, _ = keras_fit.train("EarlyStopping")
        ended = group.wait()
    assert [one.code for one in ended] == [0, 0], ended
    for task in ("chief", "worker"):
        with np.load(tmp_path / f"{task}.npz") as arrays:
            for key, wanted in zip(arrays.files, weights, strict=True):
                assert float(np.abs(arrays[key] - wanted).max()) <= 1e-10


def test_a_module_may_bring_callbacks(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer = {"module": "observed.py", "epochs": 9, "globalBatchSize": 15}
    environments = launch.environments(tmp_path, SCRIPT.parent, trainer, processes=2)
    with runs.group(environments) as group:
        ended = group.wait()
    assert [one.code for one in ended] == [0, 0], ended
    assert launch.summary(tmp_path).epochs == 3  # the first was the best
    with (tmp_path / "output" / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["learning_rate"]) for row in rows] == [0.05, 0.025, 0.0125]
    assert float(rows[2]["val_loss"]) > float(rows[0]["val_loss"])


def servers(
    folder: pathlib.Path, kind: str, name: str
) -> tuple[dict[str, launch.Ended], pathlib.Path]:
    """Run a case with a chief, a worker and a server."""
    script = SCRIPT.with_name("fit_servers.py")
    environments = launch.with_servers(folder, script.parent, {}, workers=1, servers=1)
    command = (str(script), str(folder), kind, name)
    with trainings.Runs(folder).group(list(environments.values()), command) as group:
        ended = group.wait()
    return dict(zip(environments, ended, strict=True)), folder


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["EarlyStopping", "LearningRateScheduler", "PyDataset"])
def test_with_servers_the_chief_alone_goes_on_after_fit(name: str, tmp_path: pathlib.Path) -> None:
    ended, folder = servers(tmp_path, "function", name)
    assert {one.code for one in ended.values()} == {0}, ended
    assert "after fit" in ended["chief-0"].output
    assert "after fit" not in ended["worker-0"].output + ended["ps-0"].output
    weights, told = keras_fit.train(name)  # one worker makes the steps of one process
    with np.load(folder / "chief.npz") as arrays:
        for key, wanted in zip(arrays.files, weights, strict=True):
            assert float(np.abs(arrays[key] - wanted).max()) <= 1e-10
    history = json.loads((folder / "chief.json").read_text())["history"]
    for key, values in told["history"].items():
        assert history[key] == pytest.approx(values, abs=1e-10), key


def test_with_servers_a_model_that_is_built_already_is_refused(tmp_path: pathlib.Path) -> None:
    ended, _ = servers(tmp_path, "model", "epochs")
    assert {one.code for one in ended.values()} == {exits.Exit.USER_ERROR}, ended
    assert "give fit a function that builds the model" in ended["chief-0"].errors


def test_callbacks_hold_with_several_workers_that_do_not_wait(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    script = SCRIPT.with_name("fit_watched.py")
    started = list(launch.with_servers(tmp_path, script.parent, {}, workers=2).values())
    with runs.group(started, (str(script), str(tmp_path))) as group:
        ended = group.wait()
    assert {one.code for one in ended} == {0}, ended
    told = json.loads((tmp_path / "told.json").read_text())
    # EarlyStopping: the first epoch stays the best, and its weights are put back.
    assert told["epochs"] == [0, 1, 2]
    assert {"accuracy", "loss", "staleness_mean"} <= told["history"].keys()
    assert told["restored"] == 0
    # ModelCheckpoint: what is saved is what the servers have when every step of the epoch is made.
    assert told["saved"] == [0, 0, 0]
    # on_train_batch_end: each batch once and in order, with the mean of the steps made by then.
    assert [batch for batch, _, _ in told["batches"]] == [*range(12)] * 3
    assert all(0 < loss < 10 and 0 <= accuracy <= 1 for _, loss, accuracy in told["batches"])
    assert told["rates"] == pytest.approx([0.1 * 0.99**step for step in range(36)], rel=1e-5)
