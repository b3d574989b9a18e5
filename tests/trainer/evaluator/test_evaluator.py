"""The evaluator beside training: it evaluates new checkpoints, and training never depends on it."""

import json
import pathlib
import shutil
import signal
from typing import Any

import keras
import pytest

from testing.trainer import launch, reference, server_jobs
from testing.trainer import runs as trainings
from tfparallel_trainer import errors, process_settings
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.keras_fit import distribution
from tfparallel_trainer.loop import preflight
from tfparallel_trainer.reporting import results

CHECKPOINT: dict[str, object] = {"claim": "c", "everySteps": 5, "keep": 3}
MLP: dict[str, Any] = {
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


def test_its_results_are_those_that_training_would_find(runs: trainings.Runs) -> None:
    alone = runs.finish(folder="alone", **MLP)
    expected = events(alone.folder, outputs.TRAIN_LOG, "evaluation")[-1]["metrics"]
    environments = runs.environments(**MLP, processes=2)
    with (
        runs.group([launch.evaluator_of(environments[0])], new=True) as evaluators,
        runs.group(environments) as training,
    ):
        training.finish()
        (evaluator,) = evaluators.finish()
    assert events(runs.folder, outputs.TRAIN_LOG, "evaluation") == []
    evaluation = events(runs.folder, outputs.EVALUATION_LOG, "evaluation")[-1]
    assert evaluation["step"] == 12
    assert evaluation["metrics"] == pytest.approx(expected, abs=1e-10)
    metrics = launch.summary(runs.folder).metrics
    assert {name: metrics[f"val_{name}"] for name in expected} == evaluation["metrics"]
    assert list((runs.folder / "output" / outputs.TENSORBOARD / "evaluation").iterdir())
    assert "step 12 was evaluated last" in evaluator.output


def test_it_comes_and_goes_while_servers_train(runs: trainings.Runs) -> None:
    environments = runs.server_environments(
        source=server_jobs.EXAMPLE,
        workers=1,
        steps=240,
        globalBatchSize=16,
        checkpoint={"claim": "c", "everySteps": 20, "keep": 1},
    )
    evaluator = launch.evaluator_of(environments["chief-0"])
    with runs.group([evaluator]) as first:
        first.wait_for_output(0, "evaluates the checkpoints")
        first.processes[0].send_signal(signal.SIGTERM)
        (ended,) = first.wait()
        assert ended.code == exits.Exit.PREEMPTED, ended
    with (
        runs.group([evaluator]) as second,
        runs.group(list(environments.values())) as training,
    ):
        second.wait_for_output(0, "  evaluation  ")
        second.processes[0].send_signal(signal.SIGKILL)
        second.wait()
        with runs.group([evaluator]) as third:
            training.finish()
            third.finish()
    metrics = launch.summary(runs.folder).metrics
    model = keras.models.load_model(runs.folder / "output" / outputs.MODEL)
    x, y = reference.load("model", server_jobs.EXAMPLE).evaluation_data()
    loss, accuracy = model.evaluate(x, y, batch_size=32, verbose=0)
    assert metrics["val_loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["val_accuracy"] == pytest.approx(accuracy, abs=1e-6)


def test_a_checkpoint_that_is_not_whole_is_skipped(runs: trainings.Runs) -> None:
    environments = runs.environments(**MLP)
    evaluator = launch.evaluator_of(environments[0])
    job = process_settings.read(evaluator)
    results.Status(job).publish(12, {"loss": 0.5})  # so that training does not wait for it
    with runs.group(environments) as group:
        group.finish()
    assert launch.summary(runs.folder).metrics["val_loss"] == 0.5
    folder = runs.folder / "output" / outputs.CHECKPOINTS
    results.Status(job)
    damaged = folder / "step-0000000012" / "part-00000.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    shutil.copytree(folder / "step-0000000010", folder / "step-0000000011")
    (folder / "step-0000000011" / "index.json").unlink()
    (folder / ".writing-000001-1").mkdir()
    with runs.group([evaluator]) as group:
        (ended,) = group.finish()
    assert ended.output.count("skipping a checkpoint") == 2
    assert "step 10 was evaluated last" in ended.output
    assert [e["step"] for e in events(runs.folder, outputs.EVALUATION_LOG, "evaluation")] == [10]
    result = results.read(job)
    assert result is not None
    assert result.step == 10
    assert results.owed(job)
    assert (folder / ".writing-000001-1").exists(), "the evaluator only reads"


def evaluator_settings(
    folder: pathlib.Path, trainer: dict[str, object]
) -> process_settings.Settings:
    """The settings of a job's evaluator."""
    (variables,) = launch.environments(folder, reference.MODELS, trainer)
    return process_settings.read(launch.evaluator_of(variables))


def test_an_evaluator_needs_checkpoints_and_a_job_that_knows_of_it(tmp_path: pathlib.Path) -> None:
    preflight.check(evaluator_settings(tmp_path, MLP))
    with pytest.raises(errors.BadConfigurationError, match=r"trainer\.checkpoint is not given"):
        preflight.check(evaluator_settings(tmp_path, {"module": "mlp.py", "epochs": 1}))
    (variables,) = launch.environments(tmp_path, reference.MODELS, MLP)
    config = launch.evaluator_of(variables)[environment.TF_CONFIG]
    (again,) = launch.environments(tmp_path, reference.MODELS, MLP)
    with pytest.raises(errors.BadConfigurationError, match="evaluator: false"):
        preflight.check(process_settings.read({**again, environment.TF_CONFIG: config}))


def test_an_evaluator_needs_examples(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer = {"module": "slow_stream.py", "steps": 5, "checkpoint": CHECKPOINT}
    (chief,) = launch.environments(tmp_path, reference.MODELS, trainer)
    evaluator = launch.evaluator_of(chief)
    for variables in (chief, evaluator):
        with reference.floatx():
            ended = trainings.attempt(variables)
        assert ended.code == exits.Exit.USER_ERROR, ended
        assert "evaluation_data is missing, and the job has an evaluator" in ended.errors


def test_the_chief_does_not_wait_for_an_evaluator_that_is_dead(tmp_path: pathlib.Path) -> None:
    job = evaluator_settings(tmp_path, {**MLP, "startTimeoutSeconds": 1})
    lines: list[str] = []
    looks: list[str] = []
    results.wait_for(12, job, lines.append, looks.append)
    assert [line.split(" ")[0] for line in lines] == ["waiting", "warning:"]
    assert looks, "each is a sign of life"
    evaluator_status = results.Status(job)
    lines.clear()
    results.wait_for(12, job, lines.append, looks.append)
    assert "the job ends without it" in lines[1]
    evaluator_status.publish(12, {"loss": float("nan"), "accuracy": 0.5})
    lines.clear()
    results.wait_for(12, job, lines.append, looks.append)
    assert lines == []
    assert str(results.metrics(job)) == "{'val_loss': nan, 'val_accuracy': 0.5}"


def test_results_of_another_jobs_evaluator_do_not_count(tmp_path: pathlib.Path) -> None:
    job = evaluator_settings(tmp_path, MLP)
    results.Status(job).publish(12, {"loss": 1.0})
    assert results.metrics(job) == {"val_loss": 1.0}
    assert results.metrics(evaluator_settings(tmp_path, {**MLP, "epochs": 5})) == {}
    (tmp_path / "output" / outputs.EVALUATION).write_text("{")
    assert results.read(job) is None


def test_fit_does_not_train_in_an_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "evaluator": ["b:1"]}
    task = {"type": "evaluator", "index": 0}
    monkeypatch.setenv(environment.TF_CONFIG, json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(errors.BadConfigurationError, match="as an evaluator, and fit trains"):
        distribution.described()
