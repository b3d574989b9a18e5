"""What users get wrong, in both engines: one sentence and a documented exit code each."""

import json
import pathlib
from typing import Any

import pytest

from testing import disks
from testing.trainer import launch, reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits, outputs

pytestmark = pytest.mark.usefixtures("runs")

MODEL = """
import keras, numpy
WIDTH, COLUMNS, OUTPUTS = 3, 3, 2
def build_model():
    return keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(OUTPUTS)])
def compile_model(model):
    model.compile(keras.optimizers.SGD(0.1), "mse")
def training_data():
    return numpy.ones((8, COLUMNS)), numpy.ones((8, 2))
"""
NOT_COMPILED = MODEL.replace("model.compile(", "dict(optimizer=").replace('"mse"', 'loss="mse"')
BROKEN = MODEL.replace("numpy.ones((8, COLUMNS))", "numpy.full((8, COLUMNS), numpy.nan)")
EMPTY = MODEL.replace("ones((8,", "ones((0,")
CHECKPOINT = {"claim": "c", "everySteps": 1, "keep": 5}

STRATEGIES = pytest.mark.parametrize("strategy", ["Mirrored", "ParameterServer"])


def run(folder: pathlib.Path, strategy: str, text: str = MODEL, **trainer: object) -> launch.Ended:
    """Run a module to the end of its chief."""
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(text)
    spec: dict[str, object] = {"epochs": 2, "globalBatchSize": 4, **trainer}
    if strategy == "ParameterServer":
        started = launch.with_servers(folder, folder, spec, workers=1)
        environments = list(started.values())
    else:
        environments = launch.environments(folder, folder, spec, strategy=strategy)
    with trainings.Runs(folder).group(environments) as group:
        group.processes[0].wait(120)
        return group.result(0)


def sentence(ended: launch.Ended) -> str:
    """The error that a chief ended with: the last line of its log, and no traceback of ours."""
    *before, last = ended.errors.rstrip().splitlines()
    assert last.startswith("[chief-0] error: "), ended
    assert not any("tfparallel_trainer" in line for line in before), ended
    return last


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (NOT_COMPILED, exits.Exit.USER_ERROR, "is not compiled"),
        (MODEL.replace("3, 3, 2", "3, 5, 2"), exits.Exit.USER_ERROR, "(1, 5)"),
        (MODEL.replace("3, 3, 2", "3, 3, 7"), exits.Exit.USER_ERROR, "7"),
        (EMPTY, exits.Exit.USER_ERROR, "returns no examples"),
    ],
    ids=["not-compiled", "other-features", "other-targets", "empty"],
)
def test_models_and_data_that_cannot_work(
    tmp_path: pathlib.Path, text: str, code: exits.Exit, message: str
) -> None:
    ended = run(tmp_path, "Mirrored", text)
    assert ended.code == code, ended
    assert message in sentence(ended)


COUPLED = MODEL.replace(
    "def compile_model",
    """def over_present(y, y_pred):
    present = keras.ops.cast(y != -1.0, y_pred.dtype)
    return keras.ops.sum(present * (y - y_pred) ** 2) / keras.ops.maximum(keras.ops.sum(present), 1)
def compile_model""",
).replace('"mse")', "over_present)")
COUPLED = COUPLED.replace("numpy.ones((8, 2))", "1.0 - 2.0 * numpy.eye(64, 2, -50)")
COUPLED = COUPLED.replace("ones((8,", "ones((64,")
"""The first examples miss no target, and missing ones couple the examples of a batch."""


@pytest.mark.parametrize(
    ("strategy", "layout"),
    [
        ("Mirrored", {"devices": 2}),
        pytest.param("ModelSplit", {"mesh": {"microbatches": 2}}, marks=pytest.mark.long),
    ],
)
def test_rare_targets_that_couple_a_batch_are_found_at_the_start(
    tmp_path: pathlib.Path, strategy: str, layout: dict[str, Any]
) -> None:
    (tmp_path / "model.py").write_text(COUPLED)
    spec: dict[str, object] = {"epochs": 1, "globalBatchSize": 4}
    started = launch.environments(tmp_path, tmp_path, spec, strategy=strategy, **layout)
    with trainings.Runs(tmp_path).group(started) as group:
        (ended,) = group.wait()
    assert ended.code == exits.Exit.USER_ERROR, ended
    assert "is no mean" in sentence(ended)


@STRATEGIES
def test_a_loss_that_is_no_number(tmp_path: pathlib.Path, strategy: str) -> None:
    ended = run(tmp_path, strategy, BROKEN, checkpoint=CHECKPOINT)
    assert ended.code == exits.Exit.NON_FINITE, ended
    assert "the loss is nan: training stopped, and no checkpoint was saved" in sentence(ended)


@STRATEGIES
def test_a_checkpoint_of_another_model_is_left_as_it_is(
    tmp_path: pathlib.Path, strategy: str
) -> None:
    first = run(tmp_path, strategy, checkpoint=CHECKPOINT)
    assert first.code == 0, first
    before = {
        key: array.tobytes() for key, array in weights.checkpoint(tmp_path / "output", 4).items()
    }
    wider = MODEL.replace("Dense(OUTPUTS)", 'Dense(6, name="new"), keras.layers.Dense(OUTPUTS)')
    ended = run(tmp_path, strategy, wider, checkpoint=CHECKPOINT, epochs=3)
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    message = sentence(ended)
    for part in (
        "step-0000000004 is a checkpoint of another model",
        "model/0/0 (sequential/dense/kernel) has the shape (3, 2) there and (3, 6) here",
        "model/0/1 (sequential/dense/bias) has the shape (2,) there and (6,) here",
        "model/1/0 (sequential/dense/kernel) has the shape of nothing there and (6, 2) here",
        "and 1 more",
    ):
        assert part in message, message
    assert {
        key: array.tobytes() for key, array in weights.checkpoint(tmp_path / "output", 4).items()
    } == before


@STRATEGIES
def test_a_directory_that_cannot_be_written_to(tmp_path: pathlib.Path, strategy: str) -> None:
    with disks.mounted(tmp_path / "output", "ro"):
        ended = run(tmp_path, strategy, checkpoint=CHECKPOINT)
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert "Read-only file system" in sentence(ended)


LARGE = MODEL.replace("Dense(OUTPUTS)", "Dense(20_000), keras.layers.Dense(OUTPUTS)")
"""A checkpoint has 480 kB."""


def test_a_disk_that_fills_up_under_servers(tmp_path: pathlib.Path) -> None:
    with disks.mounted(tmp_path / "output", "size=1300k"):
        ended = run(tmp_path, "ParameterServer", LARGE, checkpoint=CHECKPOINT, epochs=4)
        newest = weights.checkpoint(tmp_path / "output", 2)
    assert ended.code == exits.Exit.STORAGE_FAILED, ended
    message = sentence(ended)
    assert "The checkpoint of step 3 cannot be written" in message
    assert "step-0000000002 is the last good one" in message
    assert len(newest) == 4 + 2


def test_a_replica_without_examples_takes_part(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    few = MODEL.replace("ones((8,", "ones((5,")
    double = 'import keras; keras.config.set_floatx("float64")'
    (tmp_path / "model.py").write_text(f"{double}\n{few}")
    with reference.floatx():
        expected, _ = reference.train(reference.load("model", tmp_path), 4, 4, 0)
    trainer: dict[str, object] = {"epochs": 2, "globalBatchSize": 4, "checkpoint": CHECKPOINT}
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=2)
    with runs.group(environments) as group:
        ended = group.wait()
    assert [process.code for process in ended] == [0, 0], ended
    assert launch.summary(tmp_path).steps == 4, "two batches: of four examples, and of one"
    assert weights.run_difference(tmp_path, expected) <= 1e-10


def test_a_module_that_changed_after_the_end_is_never_passed_over(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    spec: dict[str, object] = {"module": "model.py", "epochs": 1, "globalBatchSize": 4}
    [variables] = launch.environments(tmp_path, tmp_path, spec, strategy="Mirrored")
    variables[environment.JOB_UID] = "first"
    with trainings.Runs(tmp_path).group([variables]) as group:
        group.finish()
    again = {**variables, environment.JOB_UID: "second"}
    assert "already finished" in trainings.attempt(again).output
    (tmp_path / "model.py").write_text("raise RuntimeError")
    refused = trainings.attempt(again)
    assert refused.code == exits.Exit.BAD_CONFIGURATION
    assert "model.py has changed since this job ended after 2 steps" in sentence(refused)
    assert "Give trainer.checkpoint another claim or uri" in sentence(refused)
    assert "already finished" in trainings.attempt(variables).output, "a replica that runs again"
    summary = tmp_path / "output" / outputs.SUMMARY
    content = json.loads(summary.read_text())
    del content["moduleDigest"], content["jobUid"]
    summary.write_text(json.dumps(content))
    assert "already finished" in trainings.attempt(again).output, "of an older version"
