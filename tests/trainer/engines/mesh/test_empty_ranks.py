"""A rank without examples in a short batch computes with its peers."""

import pytest

from testing.trainer import reference
from testing.trainer import runs as trainings

STEPS, BATCH, SEED = 6, 16, 5


@pytest.mark.parametrize(("processes", "devices"), [(1, 2), (2, 1)])
def test_a_last_batch_of_one_example_equals_one_process(
    processes: int, devices: int, runs: trainings.Runs
) -> None:
    run = runs.finish(
        "uneven.py",
        steps=STEPS,
        globalBatchSize=BATCH,
        seed=SEED,
        processes=processes,
        devices=devices,
        step_log=True,
    )
    with reference.floatx():
        _, losses = reference.train(reference.load("uneven"), STEPS, BATCH, SEED)
    assert run.losses() == pytest.approx(losses, rel=1e-9)
