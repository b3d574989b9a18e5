"""A job of several processes is compared with one process while it trains."""

import json
import pathlib
from typing import Any

from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, outputs


def test_all_processes_end_before_the_next_checkpoint_if_the_model_differs(
    runs: trainings.Runs,
) -> None:
    run = runs.end(
        "states/scaled.py",
        processes=2,
        steps=4,
        globalBatchSize=4,
        verify="Auto",
        checkpoint={"claim": "c", "everySteps": 1},
    )
    assert run.codes == [exits.Exit.VERIFICATION_FAILED] * 2, run.ended
    assert "gradients (embedding/embeddings" in run.chief.errors + run.chief.output
    assert "the model differs between replicas or processes" in run.chief.errors + run.chief.output
    assert not list((run.output / outputs.CHECKPOINTS).glob("*/*"))


def test_a_right_job_is_near_one_process_also_after_a_callback_has_written(
    runs: trainings.Runs,
) -> None:
    run = runs.finish(
        "states/prune_mask.py",
        processes=2,
        devices=2,
        steps=5,
        globalBatchSize=6,
        verify="Auto",
        checkpoint={"claim": "c", "everySteps": 5},
    )
    assert any("equals one process" in line for line in run.chief.output.splitlines())
    kinds = [record["event"] for record in _records(run.output)]
    assert kinds.index(outputs.TrainEvent.FIRST_STEP) < kinds.index(outputs.TrainEvent.VERIFIED)
    events = _verified(run.output)
    assert [event["step"] for event in events] == [1, 2, 3, 4]  # the callback writes after step 2
    for event in events:
        assert max(event["differences"].values()) < 1e-12


def _verified(output: pathlib.Path) -> list[dict[str, Any]]:
    return [record for record in _records(output) if record["event"] == outputs.TrainEvent.VERIFIED]


def _records(output: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / outputs.TRAIN_LOG).read_text().splitlines()]
