"""Trainings that keep their checkpoints and results in a bucket of a real server."""

import json
import re
import shutil
import signal
from collections.abc import Mapping
from typing import Any

import keras
import pytest

from testing import buckets
from testing.trainer import launch, reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import process_settings
from tfparallel_trainer.checkpoint import entries, owner
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.reporting import results


def newest(s3: buckets.Bucket) -> dict[str, Any]:
    return weights.of_directory(entries.checkpoints(s3.checkpoints)[-1])


def steps(s3: buckets.Bucket) -> list[int]:
    return [entries.step_of(checkpoint) for checkpoint in entries.checkpoints(s3.checkpoints)]


def test_killed_it_resumes_and_ends_with_the_bits_of_an_unbroken_run(
    runs: trainings.Runs, s3: buckets.Bucket
) -> None:
    job: dict[str, Any] = {
        "module": "paced.py",
        "globalBatchSize": 20,
        "seed": 5,
        "strategy": "Mirrored",
        "variables": s3.variables,
    }
    checkpoint = {**s3.checkpoint(everySteps=7), "keep": 2}
    with runs.start(**job, folder="killed", steps=launch.ENDLESS, checkpoint=checkpoint) as group:
        group.wait_for_output(0, "  epoch 4  ")
        group.processes[0].send_signal(signal.SIGKILL)
        group.wait()
    last = steps(s3)[-1]
    assert not heartbeat(s3).ended
    shutil.rmtree(runs.folder / "killed" / "output")  # a new pod begins with an empty folder
    run = runs.finish(**job, folder="killed", steps=last + 9, attempt=2, checkpoint=checkpoint)
    assert f"resuming after step {last} from {s3.uri}/test/checkpoints" in run.chief.output
    unbroken = runs.finish(
        **job, folder="unbroken", steps=last + 9, checkpoint={"claim": "c", "everySteps": 7}
    )
    weights.assert_same_bits(newest(s3), unbroken.checkpoint())
    assert len(steps(s3)) == 2
    check_results(s3, last + 9)
    again = runs.end(**job, folder="again", steps=last + 9, attempt=3, checkpoint=checkpoint)
    assert again.chief.code == exits.Exit.DONE
    assert f"already finished; its results are in {s3.uri}/test" in again.chief.output


def check_results(s3: buckets.Bucket, last: int) -> None:
    """See that all that a claim would hold is in the bucket, over both attempts."""
    summary = outputs.Summary.model_validate_json((s3.results / outputs.SUMMARY).read_bytes())
    assert (summary.steps, summary.attempt) == (last, 2)
    lines = (s3.results / outputs.TRAIN_LOG).read_text().splitlines()
    logged = [record["step"] for record in map(json.loads, lines) if record["event"] == "train"]
    assert logged[0] < last - 9 < logged[-1] == last
    assert len(list((s3.results / outputs.TENSORBOARD / "train").iterdir())) == 2
    assert not list(s3.results.rglob(".*"))
    assert heartbeat(s3).ended


def heartbeat(s3: buckets.Bucket) -> owner.Heartbeat:
    return owner.Heartbeat.model_validate_json(s3.checkpoints.read(owner.HEARTBEAT))


def test_the_trained_model_is_fetched_and_starts_another_run(
    runs: trainings.Runs, s3: buckets.Bucket
) -> None:
    job: dict[str, Any] = {
        "module": "mlp.py",
        "steps": 1,
        "strategy": "Mirrored",
        "variables": {**s3.variables, "TMPDIR": str(runs.folder)},
    }
    runs.finish(**job, folder="first", savedModel=True, checkpoint=s3.checkpoint())
    assert (s3.results / outputs.SAVED_MODEL / "saved_model.pb").is_file()
    model = keras.models.load_model(s3.results / outputs.MODEL)
    uri = f"{s3.uri}/test/{outputs.MODEL}"
    second = runs.finish(**job, folder="second", initialWeights=uri, checkpoint={"claim": "c"})
    assert f"starting with the weights of {uri}" in second.chief.output
    assert model.count_params() > 0


def test_each_process_writes_its_part_of_a_divided_model(
    runs: trainings.Runs, s3: buckets.Bucket
) -> None:
    """A run of one process resumes from both parts, and ends as one that trains it all."""
    job: dict[str, Any] = {
        "module": "mlp.py",
        "globalBatchSize": 20,
        "seed": 3,
        "checkpoint": s3.checkpoint(),
        "variables": s3.variables,
    }
    mesh = {"tensor": 2}
    runs.finish(**job, folder="two", strategy="ModelSplit", mesh=mesh, processes=2, steps=4)
    checkpoint = entries.checkpoints(s3.checkpoints)[-1]
    assert len(list((s3.results / "checkpoints" / checkpoint.name).glob("*.bin"))) == 2
    assert keras.models.load_model(s3.results / outputs.MODEL).count_params() > 0
    assert heartbeat(s3).ended
    resumed = runs.finish(**job, folder="one", strategy="Mirrored", steps=5, attempt=2)
    assert "resuming after step 4 " in resumed.chief.output
    with reference.floatx():
        expected, _ = reference.train(reference.load("mlp"), 5, 20, 3)
    assert weights.difference(weights.of_model(newest(s3)), expected) <= weights.TOLERANCE


def test_an_evaluator_reads_the_checkpoints_of_a_chief_with_another_disk(
    runs: trainings.Runs, s3: buckets.Bucket
) -> None:
    (chief,) = runs.environments(
        module="mlp.py",
        epochs=2,
        globalBatchSize=20,
        strategy="Mirrored",
        checkpoint=s3.checkpoint(everySteps=2),
        variables=s3.variables,
    )
    evaluator = launch.evaluator_of(chief)
    evaluator[environment.OUTPUT_DIR] = str(runs.folder / "evaluator")
    with runs.group([evaluator], logs="evaluator-logs") as other, runs.group([chief]) as training:
        training.finish()
        other.finish()
    evaluated = results.read(process_settings.read(evaluator))
    assert evaluated is not None
    summary = outputs.Summary.model_validate_json((s3.results / outputs.SUMMARY).read_bytes())
    assert evaluated.step == summary.steps == 6
    assert summary.metrics["val_loss"] == evaluated.metrics["loss"]
    for log, event in ((outputs.EVALUATION_LOG, "evaluation"), (outputs.TRAIN_LOG, "done")):
        lines = (s3.results / log).read_text().splitlines()
        assert event in {json.loads(line)["event"] for line in lines}


def test_servers_and_workers_train_into_a_bucket(runs: trainings.Runs, s3: buckets.Bucket) -> None:
    environments = runs.server_environments(
        module="mlp.py", workers=1, steps=6, checkpoint=s3.checkpoint(everySteps=3)
    )
    with runs.group(
        [{**variables_of_process, **s3.variables} for variables_of_process in environments.values()]
    ) as group:
        group.finish()
    assert {3, 6} <= set(steps(s3))
    assert (s3.results / outputs.MODEL).is_file()


def test_a_bucket_that_goes_away_ends_training_with_the_fault_of_storage(
    runs: trainings.Runs, s3: buckets.Bucket
) -> None:
    with runs.start(
        module="paced.py",
        strategy="Mirrored",
        steps=launch.ENDLESS,
        checkpoint=s3.checkpoint(everySteps=2),
        variables=s3.variables,
    ) as group:
        group.wait_for_output(0, "] step ")
        s3.files.rename(s3.files.with_name(f"gone-{s3.name}"))
        (ended,) = group.wait()
    assert ended.code == exits.Exit.STORAGE_FAILED, ended
    bucket = f"bucket '{s3.name}' at {re.escape(s3.variables['AWS_ENDPOINT_URL'])}"
    part = f"No such file: 's3://{s3.name}/"  # if it goes between the write and the reading back
    assert re.search(f"{bucket}.*does not exist|{part}", ended.errors)


REFUSALS: dict[str, tuple[dict[str, str], exits.Exit, str]] = {
    "a wrong secret": (
        {"AWS_SECRET_ACCESS_KEY": "wrong"},
        exits.Exit.BAD_CONFIGURATION,
        "does not accept the credentials of the environment (SignatureDoesNotMatch: ",
    ),
    "a user without rights": (
        {"AWS_ACCESS_KEY_ID": buckets.STRANGER},
        exits.Exit.BAD_CONFIGURATION,
        "the credentials of the environment lack a right on bucket",
    ),
    "another region": (
        {"AWS_REGION": "us-east-1"},
        exits.Exit.BAD_CONFIGURATION,
        "set AWS_REGION to it",
    ),
    "no server": (
        {"AWS_ENDPOINT_URL": buckets.CLOSED},
        exits.Exit.STORAGE_FAILED,
        "which does not answer",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_bucket_that_cannot_be_used_is_refused_before_the_first_step(
    runs: trainings.Runs, s3: buckets.Bucket, name: str
) -> None:
    changes, code, sentence = REFUSALS[name]
    ended = refused(runs, {**s3.variables, **changes}, s3.uri)
    assert ended.code == code, ended
    assert f"trainer.checkpoint.uri is '{s3.uri}'" in ended.errors
    assert sentence in ended.errors
    assert ended.errors.count("\n") <= 1


def test_missing_credentials_are_reported_before_the_first_step(
    runs: trainings.Runs, s3: buckets.Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    for name in secrets:
        monkeypatch.delenv(name)
    incomplete = {name: value for name, value in s3.variables.items() if name not in secrets}
    ended = refused(runs, incomplete, s3.uri)
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert f"trainer.checkpoint.uri is '{s3.uri}', and the environment has no cred" in ended.errors
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from a Secret" in ended.errors


def test_a_bucket_that_does_not_exist_is_refused_before_the_first_step(
    runs: trainings.Runs, s3: buckets.Bucket
) -> None:
    ended = refused(runs, s3.variables, "s3://no-such-bucket/runs")
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert "'no-such-bucket' at http://127.0.0.1" in ended.errors
    assert "does not exist: create it, or correct" in ended.errors


def refused(runs: trainings.Runs, variables: Mapping[str, str], uri: str) -> launch.Ended:
    (process_environment,) = runs.environments(
        module="mlp.py", steps=1, checkpoint={"uri": uri}, variables=variables
    )
    return trainings.attempt(process_environment)


def test_a_finished_job_is_recognized_by_its_summary(
    runs: trainings.Runs, s3: buckets.Bucket
) -> None:
    (variables,) = runs.environments(steps=1, checkpoint=s3.checkpoint(), variables=s3.variables)
    job = process_settings.read(variables)
    assert results.end_of(job) is None
    summary = outputs.Summary(
        done=True,
        job_digest=job.digest,
        steps=1,
        epochs=0,
        attempt=1,
        duration_seconds=1,
        metrics={},
    )
    job.results.write(outputs.SUMMARY, summary.model_dump_json(by_alias=True).encode())
    assert results.end_of(job) is not None
