"""The evaluator beside training: it evaluates new checkpoints, and training never depends on it."""

import json
import pathlib
import shutil
import signal
import time
from typing import Any

import keras
import pytest

from testing.trainer import launch, reference
from testing.trainer import runs as trainings
from tfparallel_trainer import errors, preflight, settings
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.evaluator import board, results
from tfparallel_trainer.fitting import surroundings

pytestmark = pytest.mark.usefixtures("runs")

CHECKPOINT: dict[str, object] = {"claim": "c", "everySteps": 5, "keep": 3}
MLP: dict[str, object] = {
    "module": "mlp.py",
    "epochs": 4,
    "globalBatchSize": 20,
    "checkpoint": CHECKPOINT,
}


def events(folder: pathlib.Path, log: str, kind: str) -> list[dict[str, Any]]:
    """The records of a kind in a log; empty when there is none."""
    path = folder / "output" / log
    lines = path.read_text().splitlines() if path.exists() else []
    return [record for record in map(json.loads, lines) if record["event"] == kind]


def in_line(folder: pathlib.Path, trainer: dict[str, object]) -> dict[str, float]:
    """What one process that trains and evaluates finds at the end."""
    started = launch.environments(folder, reference.MODELS, trainer)
    with trainings.Runs(folder).group(started) as group:
        assert [one.code for one in group.wait()] == [0], group.result(0)
    found: dict[str, float] = events(folder, outputs.TRAIN_LOG, "evaluation")[-1]["metrics"]
    return found


def test_it_finds_what_training_would_find(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    expected = in_line(tmp_path / "alone", MLP)
    beside = tmp_path / "beside"
    started = launch.environments(beside, reference.MODELS, MLP, processes=2)
    started.append(launch.evaluator_of(started[0]))
    with runs.group(started, new=True) as group:
        ended = group.wait()
    assert [one.code for one in ended] == [0, 0, 0], ended
    assert events(beside, outputs.TRAIN_LOG, "evaluation") == []
    found = events(beside, outputs.EVALUATION_LOG, "evaluation")
    assert found[-1]["step"] == 12
    assert found[-1]["metrics"] == pytest.approx(expected, abs=1e-10)
    told = launch.summary(beside).metrics
    assert {name: told[f"val_{name}"] for name in expected} == found[-1]["metrics"]
    assert list((beside / "output" / outputs.TENSORBOARD / "evaluation").iterdir())
    assert "step 12 was evaluated last" in ended[2].output


def test_it_comes_and_goes_while_servers_train(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    trainer: dict[str, object] = {
        "steps": 450,
        "globalBatchSize": 16,
        "checkpoint": {"claim": "c", "everySteps": 20, "keep": 1},
    }
    source = launch.REPOSITORY / "examples" / "digits-servers"
    started = launch.with_servers(tmp_path, source, trainer, workers=1)
    evaluator = launch.evaluator_of(started["chief-0"])
    with runs.group([evaluator], logs="first") as first:
        first.wait_for_output(0, "evaluates the checkpoints")
        first.processes[0].send_signal(signal.SIGTERM)
        asked = time.monotonic()
        assert first.wait()[0].code == exits.Exit.PREEMPTED
        assert time.monotonic() - asked < 10
    with (
        runs.group([evaluator], logs="second") as second,
        runs.group(list(started.values()), logs="training") as training,
    ):
        second.wait_for_output(0, "  evaluation  ")
        second.processes[0].send_signal(signal.SIGKILL)
        second.wait()
        with runs.group([evaluator], logs="third") as third:
            assert [one.code for one in training.wait()] == [0] * 3, training.result(0)
            (ended,) = third.wait()
    assert ended.code == 0, ended
    told = launch.summary(tmp_path).metrics
    model = keras.models.load_model(tmp_path / "output" / outputs.MODEL)
    x, y = reference.load("model", source).evaluation_data()
    loss, accuracy = model.evaluate(x, y, batch_size=32, verbose=0)
    assert told["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert told["val_accuracy"] == pytest.approx(accuracy, abs=1e-6)


def test_a_checkpoint_that_is_not_whole_is_skipped(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (one,) = launch.environments(tmp_path, reference.MODELS, MLP)
    evaluator = launch.evaluator_of(one)
    given = settings.read(evaluator)
    board.Board(given).post(12, {"loss": 0.5})  # so that training does not wait for it
    with runs.group([one], logs="training") as group:
        assert [ended.code for ended in group.wait()] == [0], group.result(0)
    told = launch.summary(tmp_path)
    assert told.metrics["val_loss"] == 0.5
    folder = tmp_path / "output" / outputs.CHECKPOINTS
    board.Board(given)
    damaged = folder / "step-0000000012" / "part-00000.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    shutil.copytree(folder / "step-0000000010", folder / "step-0000000011")
    (folder / "step-0000000011" / "index.json").unlink()
    (folder / ".writing-000001-1").mkdir()
    with runs.group([evaluator], logs="evaluator") as group:
        (ended,) = group.wait()
    assert ended.code == 0, ended
    assert ended.output.count("skipping a checkpoint") == 2
    assert "step 10 was evaluated last" in ended.output
    assert [e["step"] for e in events(tmp_path, outputs.EVALUATION_LOG, "evaluation")] == [10]
    found = results.read(given)
    assert found is not None
    assert found.step == 10
    assert results.owed(given)
    assert (folder / ".writing-000001-1").exists(), "the evaluator only reads"


def given_of(folder: pathlib.Path, trainer: dict[str, object]) -> settings.Settings:
    """The settings of a job's evaluator."""
    (one,) = launch.environments(folder, reference.MODELS, trainer)
    return settings.read(launch.evaluator_of(one))


def test_an_evaluator_needs_checkpoints_and_a_job_that_knows_of_it(tmp_path: pathlib.Path) -> None:
    preflight.check(given_of(tmp_path, MLP))
    with pytest.raises(errors.BadConfigurationError, match=r"trainer\.checkpoint is not given"):
        preflight.check(given_of(tmp_path, {"module": "mlp.py", "epochs": 1}))
    (one,) = launch.environments(tmp_path, reference.MODELS, MLP)
    config = launch.evaluator_of(one)[environment.TF_CONFIG]
    (again,) = launch.environments(tmp_path, reference.MODELS, MLP)
    with pytest.raises(errors.BadConfigurationError, match="evaluator: false"):
        preflight.check(settings.read({**again, environment.TF_CONFIG: config}))


def test_an_evaluator_needs_examples(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer = {"module": "slow_stream.py", "steps": 5, "checkpoint": CHECKPOINT}
    (one,) = launch.environments(tmp_path, reference.MODELS, trainer)
    with runs.group([one, launch.evaluator_of(one)]) as group:
        ended = group.wait()
    assert [one.code for one in ended] == [exits.Exit.USER_ERROR] * 2, ended
    assert all("has no evaluation_data, and the job has an evaluator" in e.errors for e in ended)


def test_the_chief_does_not_wait_for_an_evaluator_that_is_dead(tmp_path: pathlib.Path) -> None:
    given = given_of(tmp_path, {**MLP, "startTimeoutSeconds": 1})
    said: list[str] = []
    results.wait_for(12, given, said.append)
    assert [line.split(" ")[0] for line in said] == ["waiting", "warning:"]
    told = board.Board(given)
    said.clear()
    results.wait_for(12, given, said.append)
    assert "the job ends without it" in said[1]
    told.post(12, {"loss": float("nan"), "accuracy": 0.5})
    said.clear()
    results.wait_for(12, given, said.append)
    assert said == []
    assert str(results.metrics(given)) == "{'val_loss': nan, 'val_accuracy': 0.5}"


def test_what_an_evaluator_of_another_job_found_does_not_count(tmp_path: pathlib.Path) -> None:
    given = given_of(tmp_path, MLP)
    board.Board(given).post(12, {"loss": 1.0})
    assert results.metrics(given) == {"val_loss": 1.0}
    assert results.metrics(given_of(tmp_path, {**MLP, "epochs": 5})) == {}
    (tmp_path / "output" / outputs.EVALUATION).write_text("{")
    assert results.read(given) is None


def test_fit_does_not_train_in_an_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "evaluator": ["b:1"]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv(environment.TF_CONFIG, json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(errors.BadConfigurationError, match="as an evaluator, and fit trains"):
        surroundings.described()
