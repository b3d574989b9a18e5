"""Training on many ranks gives the weights of training in one process."""

import json
import math
import pathlib

import keras
import pytest

from testing.trainer import launch, reference, weights
from testing.trainer import runs as trainings

STEPS = 20
CASES = [  # model, its examples, processes, devices of each, global batch
    pytest.param("mlp", 52, 1, 1, 15, id="mlp-1x1", marks=pytest.mark.long),
    pytest.param("mlp", 52, 2, 1, 15, id="mlp-2x1", marks=pytest.mark.long),
    pytest.param("mlp", 52, 1, 2, 15, id="mlp-1x2", marks=pytest.mark.long),
    pytest.param("cnn", 49, 3, 1, 16, id="cnn-3x1"),
    pytest.param("cnn", 49, 1, 3, 16, id="cnn-1x3", marks=pytest.mark.long),
    pytest.param("tokens", 33, 1, 2, 8, id="tokens-1x2", marks=pytest.mark.long),
    pytest.param("tokens", 33, 2, 2, 8, id="tokens-2x2"),
]


@pytest.mark.parametrize(("name", "examples", "processes", "devices", "batch"), CASES)
def test_weights_equal_one_process(
    name: str,
    examples: int,
    processes: int,
    devices: int,
    batch: int,
    tmp_path: pathlib.Path,
    runs: trainings.Runs,
) -> None:
    trainer = {
        "module": f"{name}.py",
        "steps": STEPS,
        "globalBatchSize": batch,
        "seed": 5,
        "checkpoint": {"claim": "c"},
    }
    environments = launch.environments(
        tmp_path, reference.MODELS, trainer, processes=processes, devices=devices
    )
    # Those of one device each are new, so that what TensorFlow reads while it is imported is too.
    with runs.group(environments, new=name == "mlp" and devices == 1) as group:
        with reference.floatx():
            expected, losses = reference.train(reference.load(name), STEPS, batch, 5)
        ended = group.wait()
    assert [process.code for process in ended] == [0] * processes, ended
    difference = weights.run_difference(tmp_path, expected)
    print(f"{name} {processes}x{devices}: largest difference of a weight {difference:.1e}")
    assert difference <= weights.TOLERANCE
    epoch = -(-examples // batch)
    assert told_loss(tmp_path, epoch) == pytest.approx(
        mean_loss(losses[:epoch], batch, examples), rel=1e-9
    )


def told_loss(folder: pathlib.Path, step: int) -> float:
    """The mean loss of the epoch so far that was recorded after a step."""
    lines = (folder / "output" / "logs" / "train.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    # The clock may be due at the end of an epoch, which is recorded anyway.
    (loss,) = {
        float(record["metrics"]["loss"])
        for record in records
        if record["event"] == "train" and record["step"] == step
    }
    return loss


def mean_loss(losses: list[float], batch: int, examples: int) -> float:
    """The mean over examples of the losses of an epoch's steps."""
    sizes = [min(batch, examples - first) for first in range(0, examples, batch)]
    return math.fsum(a * b for a, b in zip(losses, sizes, strict=True)) / examples


def test_model_file_is_plain_keras(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer = {"module": "mlp.py", "epochs": 1, "globalBatchSize": 26, "checkpoint": {"claim": "c"}}
    environments = launch.environments(tmp_path, reference.MODELS, trainer, strategy="Mirrored")
    with runs.group(environments, new=True) as group:
        (ended,) = group.wait()
    assert ended.code == 0, ended
    with reference.floatx():
        module = reference.load("mlp")
        model = keras.models.load_model(tmp_path / "output" / "model.keras")
        assert weights.run_difference(tmp_path, model.get_weights()) == 0.0
        x, y, weight = module.evaluation_data(type("Context", (), {"epoch": 0}))
        evaluation = model.evaluate(
            x, y, sample_weight=weight, batch_size=7, verbose=0, return_dict=True
        )
    metrics = launch.summary(tmp_path).metrics
    # Keras' evaluate averages the regularisation and each batch's mean; so does the fraction here.
    assert metrics["val_accuracy"] == pytest.approx(evaluation["accuracy"], rel=1e-9)
    assert metrics["val_loss"] == pytest.approx(evaluation["loss"], rel=1e-9)
    assert set(metrics) == {
        "loss",
        "accuracy",
        "sparse_categorical_accuracy",
        "val_loss",
        "val_accuracy",
        "val_sparse_categorical_accuracy",
    }
