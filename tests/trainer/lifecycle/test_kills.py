"""Runs whose processes are killed, and how they end when they run again."""

import json
import pathlib
import signal
from typing import Any

import pytest
from tensorboard.backend.event_processing import event_accumulator

from testing.trainer import launch, reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits

TRAINER: dict[str, object] = {
    "module": "paced.py",
    "globalBatchSize": 20,
    "seed": 5,
    "checkpoint": {"claim": "c", "everySteps": 7, "keep": 2},
}


@pytest.mark.timeout(600)
def test_killed_anywhere_it_ends_with_the_same_bits(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    def start(name: str, steps: int, attempt: int = 1) -> launch.Group:
        more = {environment.ATTEMPT: str(attempt)}
        folder = tmp_path / name
        trainer = {**TRAINER, "steps": steps}
        environments = launch.environments(
            folder, reference.MODELS, trainer, processes=2, more=more
        )
        return trainings.Runs(folder).group(environments)

    def finish(name: str, steps: int, attempt: int = 1) -> None:
        with start(name, steps, attempt) as group:
            ended = group.wait()
        assert [process.code for process in ended] == [0, 0], ended

    # The chief; the worker, before a checkpoint came; both at once.
    cases = (("  epoch 3  ", [0]), ("resuming after step", [1]), ("] step ", [0, 1]))
    for attempt, (output, victims) in enumerate(cases, 1):
        with start("killed", launch.ENDLESS, attempt) as group:
            group.wait_for_output(0, output)
            for victim in victims:
                group.processes[victim].send_signal(signal.SIGKILL)
            ended = group.wait()
        for number, process in enumerate(ended):
            expected = -signal.SIGKILL if number in victims else exits.Exit.PEER_LOST
            assert process.code == expected, process
        assert attempt == 1 or "resuming after step" in ended[0].output

    steps = launch.newest(tmp_path / "killed") + 20
    finish("killed", steps, attempt=4)
    finish("whole", steps)
    weights.assert_same_bits(
        weights.checkpoint(tmp_path / "killed" / "output", steps),
        weights.checkpoint(tmp_path / "whole" / "output", steps),
    )


@pytest.mark.timeout(400)
def test_it_goes_on_with_other_numbers_and_strategies(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    with reference.floatx():
        expected, _ = reference.train(reference.load("mlp"), 48, 20, 3)

    def trainer(steps: int) -> dict[str, object]:
        checkpoint = {"claim": "c", "everySteps": 5, "keep": 2}
        common = {"module": "mlp.py", "globalBatchSize": 20, "seed": 3}
        return {**common, "steps": steps, "checkpoint": checkpoint}

    def train(steps: int, **arguments: Any) -> None:
        environments = launch.environments(tmp_path, reference.MODELS, trainer(steps), **arguments)
        finish(steps, environments)

    def finish(steps: int, environments: list[dict[str, str]]) -> None:
        with runs.group(environments) as group:
            assert group.processes[0].wait(120) == 0, group.result(0)
            ended = group.wait(20)
        assert [process.code for process in ended] == [0] * len(ended), ended
        if steps > 8:
            assert f"resuming after step {steps - 8} " in ended[0].output

    train(8, processes=2)
    train(16, processes=3)
    train(24, processes=1)
    servers = launch.with_servers(tmp_path, reference.MODELS, trainer(32), workers=1, servers=2)
    finish(32, list(servers.values()))
    train(40, processes=1, devices=2, strategy="Mirrored")
    train(48, processes=2)
    difference = weights.run_difference(tmp_path, expected)
    print(f"on six meshes one after the other: largest difference of a weight {difference:.1e}")
    assert difference <= 1e-10
    assert_all_is_on_record(tmp_path / "output" / "logs")


def assert_all_is_on_record(logs: pathlib.Path) -> None:
    """One history over all attempts, the asynchronous one with its staleness."""
    lines = (logs / "train.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["event"] == "train"]
    steps = [record["step"] for record in records]
    assert steps == sorted(steps)
    assert steps[-1] == 48
    assert all({"loss", "accuracy"} <= record["metrics"].keys() for record in records)
    assert all(
        record["epoch"] in ((record["step"] - 1) // 3, record["step"] // 3) for record in records
    )
    stale = {record["step"] for record in records if "staleness_mean" in record["metrics"]}
    assert stale
    assert stale <= set(range(25, 33))
    assert any(record.get("examplesPerSecond", 0) > 0 for record in records)
    # By default it keeps a sample of them.
    folder = str(logs / "tensorboard" / "train")
    events = event_accumulator.EventAccumulator(folder, {"tensors": 0}).Reload()
    assert {"loss", "accuracy", "staleness_mean", "staleness_max"} <= set(events.Tags()["tensors"])
    drawn = [event.step for event in events.Tensors("loss")]
    assert drawn == sorted(drawn)
    assert {3, 48} <= set(drawn) <= set(steps)
