"""SIGTERM where saving takes longer than a step may: nobody leaves before the chief has saved."""

import pathlib
import signal

import pytest

from testing.trainer import launch, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.lifecycle import termination

pytestmark = pytest.mark.usefixtures("runs")

MODEL = """
import os, sys, time
import keras, numpy

def build_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    return numpy.ones((8, 1)), numpy.ones((8, 1))

# Python tells a hook of each folder before it gets another name.
def hold(event, arguments):
    if event == "os.rename" and ".writing-" in str(arguments[0]):
        print("saving", flush=True)
        time.sleep(float(os.environ["SAVE_SECONDS"]))

sys.addaudithook(hold)
"""


def stop(folder: pathlib.Path, every: int, seconds: float, when: str) -> list[launch.Ended]:
    """Ask both processes of a run to end at a moment."""
    (folder / "model.py").write_text(MODEL)
    trainer: dict[str, object] = {
        "steps": 1_000_000,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": every},
    }
    more = {"SAVE_SECONDS": str(seconds)}
    environments = launch.environments(folder, folder, trainer, processes=2, more=more)
    with trainings.Runs(folder).group(environments) as group:
        group.wait_for_output(0, when)
        for process in group.processes:
            process.send_signal(signal.SIGTERM)
        return group.wait()


def assert_saved(folder: pathlib.Path, ended: list[launch.Ended]) -> None:
    assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 2, ended
    stopped = int(ended[0].errors.rsplit("after step ", 1)[1].split(",")[0])
    assert weights.checkpoint(folder / "output", stopped)


def test_the_last_save_takes_longer_than_peers_need_to_be_missed(tmp_path: pathlib.Path) -> None:
    ended = stop(tmp_path, every=1_000_000, seconds=4.0, when="] step ")
    assert_saved(tmp_path, ended)


def test_a_save_that_has_begun_may_take_longer_than_a_step(tmp_path: pathlib.Path) -> None:
    ended = stop(tmp_path, every=3, seconds=termination.STEP_SECONDS + 2, when="saving")
    assert_saved(tmp_path, ended)


JUMP = """
from tfparallel_trainer.lifecycle import termination

class Clock:
    now = 0.0
    looks = 0

    def monotonic(self):
        self.looks += 1
        return self.now

clock = Clock()
termination.time = clock

def await_looks(count):
    while clock.looks < count:
        time.sleep(0.01)

def hold(event, arguments):
    if event == "os.rename" and ".writing-" in str(arguments[0]) and not clock.now:
        print("saving", flush=True)
        await_looks(2)  # the signal is noticed
        clock.now = 100.0
        await_looks(clock.looks + 3)  # and 100 seconds have changed nothing

sys.addaudithook(hold)
"""


def test_a_save_may_take_the_time_that_the_pod_is_left(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(MODEL.split("# Python tells")[0] + JUMP)
    trainer: dict[str, object] = {
        "steps": 1_000_000,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": 3},
    }
    more = {environment.GRACE_SECONDS: "600"}
    environments = launch.environments(tmp_path, tmp_path, trainer, more=more)
    with runs.group(environments) as group:
        group.wait_for_output(0, "saving")
        group.processes[0].send_signal(signal.SIGTERM)
        (ended,) = group.wait()
    assert ended.code == exits.Exit.PREEMPTED, ended
    assert "which is saved" in ended.errors
