"""A forked process trains exactly as a new one: other tests may take the cheaper.

In continuous integration, tests that kill processes start processes of each strategy afresh.
"""

from typing import Any

import pytest

from testing.trainer import runs as trainings
from testing.trainer import weights

pytestmark = pytest.mark.long

STEPS = 4
JOB: dict[str, Any] = {
    "steps": STEPS,
    "globalBatchSize": 15,
    "seed": 5,
    "checkpoint": {"claim": "c"},
}
STAGES = {"strategy": "ModelSplit", "mesh": {"stage": 2, "microbatches": 3}}


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({"strategy": "Mirrored", "devices": 2}, id="Mirrored"),
        pytest.param({"processes": 2}, id="MultiWorkerMirrored"),
        pytest.param({"processes": 2, **STAGES}, id="ModelSplit"),
    ],
)
def test_forked_and_new_processes_give_the_same_bits(
    job: dict[str, Any], runs: trainings.Runs
) -> None:
    forked, new = (
        runs.finish("mlp.py", folder=str(is_new), new=is_new, **JOB, **job)
        for is_new in (False, True)
    )
    weights.assert_same_bits(forked.checkpoint(STEPS), new.checkpoint(STEPS))


def test_forked_and_new_servers_give_the_same_bits(runs: trainings.Runs) -> None:
    forked, new = (
        runs.finish_servers("mlp.py", folder=str(is_new), new=is_new, workers=1, **JOB)
        for is_new in (False, True)
    )
    weights.assert_same_bits(forked.checkpoint(STEPS), new.checkpoint(STEPS))
