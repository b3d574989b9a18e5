"""What is stuck before, between or after the steps is shown and ended."""

import pathlib
from typing import Any

import pytest

from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits

LIMIT_SECONDS = 20
"""It is looked at once a second, and time stands still until something is stuck."""

STUCK = """
import os, sys, time, types
import keras, numpy, tensorflow as tf
from tfparallel_trainer.lifecycle import stall

now = time.monotonic()
stall.time = types.SimpleNamespace(monotonic=lambda: now)

def never_comes():
    global now
    now += 1e6
    time.sleep(600)

def at(moment):
    if os.environ["STUCK_AT"] == moment:
        never_comes()

def hear(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("model.keras"):
        at("export")
    if event == "open" and str(arguments[0]).endswith("part-00000.bin"):
        at("checkpoint")

sys.addaudithook(hear)
at("import")
"""

MODEL = (
    STUCK
    + """
def build_model():
    at("build_model")
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(4), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    at("training_data")
    def generate():
        at("example")
        yield from zip(numpy.ones((8, 2)), numpy.ones((8, 1)))
    kinds = tf.TensorSpec((2,), tf.float64), tf.TensorSpec((1,), tf.float64)
    return tf.data.Dataset.from_generator(generate, output_signature=kinds)

def evaluation_data():
    at("evaluation_data")
    return numpy.ones((8, 2)), numpy.ones((8, 1))

def callbacks():
    at("callbacks")
    return [keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: at("step"))]
"""
)

SCRIPT = (
    STUCK
    + """
import tfparallel_trainer

def model():
    at("build_model")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

tfparallel_trainer.fit(
    model, numpy.ones((8, 2)), numpy.ones((8, 1)), batch_size=4,
    step_timeout_seconds=20, verbose=0,
)
"""
)


def variables(moment: str) -> dict[str, str]:
    return {"STUCK_AT": moment}


def job(folder: pathlib.Path, **more: Any) -> dict[str, Any]:
    """The arguments of a job whose module is in the folder."""
    (folder / "model.py").write_text(MODEL)
    return {
        "module": "model.py",
        "source": folder,
        "epochs": 1,
        "globalBatchSize": 4,
        "stepTimeoutSeconds": LIMIT_SECONDS,
        **more,
    }


def assert_stalled(ended: launch.Ended, since: str) -> None:
    assert ended.code == exits.Exit.STALLED, ended
    assert f"s (trainer.stepTimeoutSeconds) since {since}:" in ended.errors
    assert "in never_comes" in ended.errors, "the stacks"


@pytest.mark.parametrize(
    ("moment", "since"),
    [
        ("import", "the import of model.py began"),
        ("evaluation_data", "the call of evaluation_data began"),
        ("training_data", "the call of training_data began"),
        ("example", "the call of training_data ended"),
        ("build_model", "the call of build_model began"),
        ("callbacks", "the call of callbacks began"),
        ("step", "step 1"),
        ("export", "the export of model.keras began"),
    ],
)
def test_in_one_process(runs: trainings.Runs, moment: str, since: str) -> None:
    run = runs.end(**job(runs.folder, strategy="Mirrored", variables=variables(moment)))
    assert_stalled(run.chief, since)


def test_while_a_checkpoint_is_read(runs: trainings.Runs) -> None:
    checkpoint = {"checkpoint": {"claim": "c"}, "strategy": "Mirrored"}
    runs.finish(**job(runs.folder, **checkpoint, variables=variables("never")))
    again = job(runs.folder, **checkpoint, variables=variables("checkpoint"))
    run = runs.end(**{**again, "epochs": 2})
    assert_stalled(run.chief, "reading the newest checkpoint began")


@pytest.mark.parametrize(
    "strategy", [{"strategy": "Custom"}, {"strategy": "ModelSplit", "mesh": {"stage": 2}}]
)
def test_under_other_strategies(runs: trainings.Runs, strategy: dict[str, Any]) -> None:
    arguments = job(runs.folder, **strategy, devices=2, variables=variables("export"))
    with (runs.folder / "model.py").open("a") as file:
        file.write("def build_strategy():\n    return tf.distribute.MirroredStrategy()\n")
        file.write("del callbacks\n")
    run = runs.end(**arguments)
    assert_stalled(run.chief, "the export of model.keras began")


def test_with_servers(runs: trainings.Runs) -> None:
    started = runs.server_environments(**job(runs.folder), workers=1)
    started["chief-0"] |= variables("export")
    with runs.group(list(started.values())) as group:
        group.processes[0].wait(150)
        assert_stalled(group.result(0), "the export of model.keras began")


def test_in_the_evaluator(runs: trainings.Runs) -> None:
    arguments = job(runs.folder, variables=variables("evaluation_data"))
    (chief,) = runs.environments(**arguments, checkpoint={"claim": "c"})
    with runs.group([launch.evaluator_of(chief)]) as group:
        (ended,) = group.wait()
    assert_stalled(ended, "the call of evaluation_data began")


def test_in_fit(runs: trainings.Runs) -> None:
    script = runs.folder / "script.py"
    script.write_text(SCRIPT)
    environments = runs.environments(variables=variables("build_model"), epochs=1)
    with runs.group(environments, [str(script)]) as group:
        (ended,) = group.wait()
    assert_stalled(ended, "the call of build_model began")


PATIENT = """
import time
import keras, numpy
from tfparallel_trainer.loop import training
from tfparallel_trainer.lifecycle import stall
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.objective import state

class Clock:
    now = time.monotonic()
    looks = 0

    def monotonic(self):
        self.looks += 1
        return self.now

stall.time = clock = Clock()
has_ended = False

def slow(function, only_at_end=False):
    def wait(*arguments):
        if has_ended or not only_at_end:
            clock.now += 100
            looks = clock.looks
            while clock.looks < looks + 2:
                time.sleep(0.01)
            print("waited", flush=True)
        return function(*arguments)
    return wait

barrier = state.barrier
state.barrier = lambda replicas: slow(barrier(replicas), only_at_end=True)
state.share = slow(state.share)
agreement.check = slow(agreement.check)

def run_to_end(self):
    global has_ended
    run(self)
    has_ended = True

run = training.Training.run
training.Training.run = run_to_end

def build_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    return numpy.ones((8, 1)), numpy.ones((8, 1))
"""


def test_others_may_take_longer_than_the_limit(runs: trainings.Runs) -> None:
    (runs.folder / "model.py").write_text(PATIENT)
    run = runs.finish(
        "model.py",
        source=runs.folder,
        processes=2,
        epochs=1,
        globalBatchSize=4,
        stepTimeoutSeconds=LIMIT_SECONDS // 2,
    )
    for ended in run.ended:
        assert ended.output.count("waited") == 4, "two at the start and two at the end"
