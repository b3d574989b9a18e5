"""Checkpoints that are written while training continues: whole, of their step, and told if not."""

import json
import pathlib
import signal
from typing import Any

import pytest

from testing.trainer import launch, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, outputs

MODEL = """
import errno, os, sys, time
import keras, numpy

keras.config.set_floatx("float64")
made = 0

def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])

def compile_model(model):
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")

def training_data():
    return numpy.eye(32, 4), numpy.ones((32, 1))

# Python tells a hook of each file before it is opened, and before it gets another name.
def hold(event, arguments):
    path = str(arguments[0]) if arguments else ""
    if event == "os.rename" and "HOLD" in os.environ and path.endswith(os.environ["HOLD"]):
        WAIT
    if event == "open" and "FAIL" in os.environ and path.endswith(os.environ["FAIL"]):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

sys.addaudithook(hold)
"""

COUNTED = (
    MODEL.replace("WAIT", "wait_for_steps()")
    + """
def count(*_):
    global made
    made += 1

def callbacks():
    return [keras.callbacks.LambdaCallback(on_train_batch_end=count)]

def wait_for_steps():
    limit = time.monotonic() + 20
    while made < 6 and time.monotonic() < limit:
        time.sleep(0.01)
    print(f"step 3 is written after step {made}", flush=True)
"""
)
STEP = "-0000000003"


def test_training_goes_on_and_the_checkpoint_is_of_its_step(runs: trainings.Runs) -> None:
    (runs.folder / "model.py").write_text(COUNTED)
    job: dict[str, Any] = {
        "module": "model.py",
        "source": runs.folder,
        "globalBatchSize": 4,
        "strategy": "Mirrored",
        "checkpoint": {"claim": "c", "everySteps": 3, "keep": 9},
    }
    delayed = runs.finish(**job, folder="delayed", steps=7, variables={"HOLD": STEP})
    assert "step 3 is written after step 6" in delayed.chief.output
    for steps in (3, 7):
        unbroken = runs.finish(**job, folder=f"until-{steps}", steps=steps)
        weights.assert_same_bits(
            weights.checkpoint(delayed.output, steps), weights.checkpoint(unbroken.output, steps)
        )
    lines = (delayed.output / outputs.TRAIN_LOG).read_text().splitlines()
    saved = [
        record
        for record in map(json.loads, lines)
        if record["event"] == outputs.TrainEvent.CHECKPOINT
    ]
    assert [record["step"] for record in saved] == [3, 6, 7]
    assert saved[0]["seconds"] < saved[0]["writeSeconds"]


@pytest.mark.parametrize(
    ("rank", "sentence", "layout"),
    [
        (0, "A checkpoint is not written, because another process could not do its part", {}),
        (
            1,
            "step 3 is not written, because worker-0 could not do its part",
            {"strategy": "ModelSplit", "mesh": {"stage": 2}},
        ),
    ],
    ids=["MultiWorkerMirrored", "ModelSplit"],
)
def test_a_disk_that_takes_nothing_ends_all_processes_at_once(
    rank: int, sentence: str, layout: dict[str, Any], runs: trainings.Runs
) -> None:
    (runs.folder / "model.py").write_text(MODEL.replace("WAIT", "pass"))
    environments = runs.environments(
        "model.py",
        source=runs.folder,
        processes=2,
        steps=launch.ENDLESS,
        globalBatchSize=4,
        checkpoint={"claim": "c", "everySteps": 3},
        **layout,
    )
    environments[rank]["FAIL"] = f"{STEP}/part-{rank if layout else 0:05}.bin"
    with runs.group(environments) as group:
        ended = group.wait()
    failed, other = ended[rank], ended[1 - rank]
    assert failed.code == exits.Exit.STORAGE_FAILED, failed
    assert "The checkpoint of step 3 cannot be written ([Errno 28] No space" in failed.errors
    assert other.code == exits.Exit.PEER_LOST, other
    assert sentence in other.errors
    assert launch.newest(runs.folder) == 0


def test_the_chief_finishes_what_it_writes_when_a_worker_is_lost(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    wait = 'print("saving", flush=True); time.sleep(4)'
    (tmp_path / "model.py").write_text(MODEL.replace("WAIT", wait))
    environments = runs.environments(
        "model.py",
        source=tmp_path,
        processes=2,
        steps=launch.ENDLESS,
        globalBatchSize=4,
        checkpoint={"claim": "c", "everySteps": 3},
    )
    environments[0]["HOLD"] = STEP
    with runs.group(environments) as group:
        group.wait_for_output(0, "saving")
        group.processes[1].send_signal(signal.SIGKILL)
        chief, _ = group.wait()
    assert chief.code == exits.Exit.PEER_LOST, chief
    assert weights.checkpoint(runs.folder / "output", 3)
