"""The log that has a line for each step."""

import json
import pathlib

import pytest

from testing.trainer import launch, reference
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, outputs


@pytest.mark.parametrize("asked", [True, False])
def test_the_chief_logs_each_step_where_that_is_asked_for(
    tmp_path: pathlib.Path, asked: bool, runs: trainings.Runs
) -> None:
    environments = launch.environments(
        tmp_path,
        reference.MODELS,
        {"module": "mlp.py", "epochs": 2, "globalBatchSize": 20},
        more={environment.STEP_LOG: "1"} if asked else {},
    )
    with runs.group(environments) as group:
        [ended] = group.wait()
    assert ended.code == 0, ended.errors
    log = tmp_path / "output" / outputs.STEP_LOG
    assert log.exists() == asked
    if not asked:
        return
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    of_epoch = ["epoch", "step", "step", "step", "evaluation"]
    assert [line["event"] for line in lines] == ["model", *of_epoch, *of_epoch]
    assert [line["examples"] for line in lines if "examples" in line] == [20, 20, 12] * 2
    assert lines[0]["bytes"] == 8 * (6 * 16 + 16 + 16 * 8 + 8 + 8 * 3 + 3)
    assert lines[0]["variables"] == 6
    assert not any("staleness" in line for line in lines)
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    summary = launch.summary(tmp_path)
    assert lines[-1]["metrics"]["loss"] == pytest.approx(summary.metrics["val_loss"])
    losses = [line["loss"] * line["examples"] for line in lines if "loss" in line][3:]
    assert sum(losses) / 52 == pytest.approx(summary.metrics["loss"])
