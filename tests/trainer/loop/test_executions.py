"""Executions of several steps: the same run as with single steps, wherever it is cut."""

import pathlib
import signal
from typing import Any

import numpy as np

from testing import paths
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits

BROKEN = """
import keras, numpy

def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    x = numpy.ones((40, 3))
    x[5] = numpy.nan
    return x, numpy.ones((40, 1))
"""

SHORT = """
from tfparallel_trainer.loop import execution_length
from tfparallel_trainer.reporting import reports

execution_length.SHORT_STEPS = execution_length.REMAINING_STEPS = 1
reports.INTERVAL_SECONDS = 0.0

"""
"""Of a module, so that the trainer takes any steps for short and many."""
CHOSEN = "] steps are short: from step 3 on, one call of TensorFlow computes up to 16."


def write_short(folder: pathlib.Path, name: str) -> None:
    """Write a module of the tests, which has short steps."""
    (folder / name).write_text(SHORT + (paths.TRAINER_MODELS / name).read_text())


def assert_equal(checkpoint: dict[str, Any], other: dict[str, Any]) -> None:
    assert checkpoint.keys() == other.keys()
    for name, array in checkpoint.items():
        np.testing.assert_array_equal(array, other[name], name)


def test_checkpoints_are_those_of_single_steps(runs: trainings.Runs) -> None:
    """Epochs of seven steps, of which the last is smaller; checkpoints every five steps."""
    settings: dict[str, Any] = {
        "globalBatchSize": 8,
        "steps": 18,
        "processes": 2,
        "verify": "Auto",
        "checkpoint": {"claim": "c", "everySteps": 5, "keep": 9},
    }
    single, several = (
        runs.finish("mlp.py", folder=f"of-{count}", stepsPerExecution=count, **settings)
        for count in (1, 4)
    )
    for step in (5, 7, 10, 14, 15, 18):
        assert_equal(several.checkpoint(step), single.checkpoint(step))
    assert several.summary.steps == single.summary.steps == 18
    assert several.summary.metrics == single.summary.metrics


def test_a_stopped_run_continues_as_if_it_had_not_stopped(runs: trainings.Runs) -> None:
    settings: dict[str, Any] = {
        "globalBatchSize": 6,
        "steps": 40,
        "processes": 2,
        "checkpoint": {"claim": "c", "everySteps": 1000},
    }
    with runs.start("paced.py", stepsPerExecution=3, **settings) as group:
        group.wait_for_output(0, "] step ")
        group.processes[1].send_signal(signal.SIGTERM)
        ended = group.wait()
    assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 2, ended
    resumed = runs.finish("paced.py", attempt=2, stepsPerExecution=3, **settings)
    assert "resuming after step" in resumed.chief.output
    single = runs.finish("paced.py", folder="single", stepsPerExecution=1, **settings)
    assert_equal(resumed.checkpoint(), single.checkpoint())


def test_chosen_executions_change_no_checkpoint(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    """Epochs of seven steps, of which the last is smaller; checkpoints every nine steps."""
    write_short(tmp_path, "mlp.py")
    settings: dict[str, Any] = {
        "globalBatchSize": 8,
        "epochs": 4,
        "processes": 2,
        "checkpoint": {"claim": "c", "everySteps": 9, "keep": 9},
    }
    chosen = runs.finish("mlp.py", folder="chosen", source=tmp_path, **settings)
    assert CHOSEN in chosen.chief.output
    single = runs.finish("mlp.py", folder="single", stepsPerExecution=1, **settings)
    assert CHOSEN not in single.chief.output
    for step in (7, 9, 14, 18, 21, 27, 28):
        assert_equal(chosen.checkpoint(step), single.checkpoint(step))
    assert chosen.summary.metrics == single.summary.metrics


def test_a_run_of_chosen_executions_continues_as_if_it_had_not_stopped(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    write_short(tmp_path, "paced.py")
    settings: dict[str, Any] = {
        "globalBatchSize": 6,
        "steps": 70,
        "processes": 2,
        "checkpoint": {"claim": "c", "everySteps": 1000},
    }
    with runs.start("paced.py", source=tmp_path, **settings) as group:
        group.wait_for_output(0, CHOSEN)
        group.processes[1].send_signal(signal.SIGTERM)
        ended = group.wait()
    assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 2, ended
    resumed = runs.finish("paced.py", attempt=2, source=tmp_path, **settings)
    assert "resuming after step" in resumed.chief.output
    single = runs.finish("paced.py", folder="single", stepsPerExecution=1, **settings)
    assert_equal(resumed.checkpoint(), single.checkpoint())


def test_a_step_that_is_not_finite_is_named(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    """In an epoch's own order each example comes once, so one of ten steps has the broken one."""
    (tmp_path / "model.py").write_text(BROKEN)
    named = []
    for count in (1, 6):
        run = runs.end(
            "model.py",
            folder=f"of-{count}",
            source=tmp_path,
            stepsPerExecution=count,
            epochs=1,
            globalBatchSize=4,
            checkpoint={"claim": "c", "everySteps": 1000},
        )
        assert run.codes == [exits.Exit.NON_FINITE]
        assert "no checkpoint was saved" in run.chief.errors
        named.append(run.chief.errors.split("In step ")[1].split(":")[0])
    assert named[0] == named[1]
    assert named[0].endswith("the loss is nan")
