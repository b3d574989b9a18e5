"""A job of which a process was killed ends with the weights of one undisturbed process."""

import functools
import itertools
import os
import signal
from typing import Any
from unittest import mock

import keras
import pytest

from testing import repeats, waiting
from testing.trainer import launch, reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, outputs

EPOCHS, STEPS, BATCH, SEED = 3, 9, 4, 3
PAUSE, PAUSED = 5, "paused for processes to be ended"
TRAINER: dict[str, Any] = {
    "globalBatchSize": BATCH,
    "seed": SEED,
    "steps": STEPS,
    "checkpoint": {"claim": "c", "everySteps": 2, "keep": 2},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "MultiWorkerMirrored": {},
    "stages": {"strategy": "ModelSplit", "mesh": {"stage": 2, "microbatches": 2}},
    "tensor": {"strategy": "ModelSplit", "mesh": {"tensor": 2}},
    "data": {"strategy": "ModelSplit", "mesh": {"data": 2}},
    "servers": {},
}
TOGETHER = (
    *("assigned", "counted", "excluded", "scheduled", "drawn"),
    *("annealed", "called", "masked", "frozen"),
)
CASES = ("all", *TOGETHER, "path", "headless", "averaged", "accumulated")
IN_CI = (("all", "MultiWorkerMirrored"), ("all", "stages"), ("excluded", "servers"))
REFUSED = {
    ("path", "tensor"),  # an optimizer of one's own trains no parts
    # Servers would lose updates of averages and of sums of gradients.
    ("averaged", "servers"),
    ("accumulated", "servers"),
    # No callback has the whole model with ModelSplit.
    *(
        (case, strategy)
        for case in ("masked", "frozen")
        for strategy in ("stages", "tensor", "data")
    ),
}
ROWS = [row for row in itertools.product(CASES, STRATEGIES) if row not in REFUSED]


def cases_of(case: str, strategy: str) -> str:
    together = [case for case in TOGETHER if (case, strategy) not in REFUSED]
    return ",".join(together) if case == "all" else case


def start(runs: trainings.Runs, case: str, strategy: str, attempt: int) -> launch.Group:
    variables = {"CASES": cases_of(case, strategy), "PAUSE": str(PAUSE if attempt == 1 else 0)}
    if strategy == "servers":
        environments = runs.server_environments("restarted.py", workers=1, **TRAINER).values()
        return runs.group(
            [{**variables_of_process, **variables} for variables_of_process in environments]
        )
    layout = STRATEGIES[strategy]
    return runs.start(
        "restarted.py", processes=2, attempt=attempt, variables=variables, **layout, **TRAINER
    )


@functools.cache
def expected(cases: str) -> list[Any]:
    """Return the weights of one undisturbed process, which several strategies have to give."""
    with mock.patch.dict(os.environ, {"CASES": cases}), reference.floatx():
        return reference.fit(reference.load("restarted"), EPOCHS, BATCH, SEED)


def measure_difference(runs: trainings.Runs, case: str, strategy: str) -> float:
    """Kill a job after a checkpoint, resume it; return the largest difference of a weight."""
    with start(runs, case, strategy, 1) as group:
        group.wait_for_output(0, PAUSED)
        waiting.until(lambda: launch.newest(runs.folder) == 4, "the checkpoint before the pause")
        victims = [0, 1, 2] if strategy == "servers" else [1]
        for victim in victims:
            group.processes[victim].send_signal(signal.SIGKILL)
        ended = group.wait()
    for number, process in enumerate(ended):
        assert process.code == (-signal.SIGKILL if number in victims else exits.Exit.PEER_LOST), (
            process
        )
    with start(runs, case, strategy, 2) as group:
        weights_of_one_process = expected(cases_of(case, strategy))
        ended = group.wait()
    assert [process.code for process in ended] == [exits.Exit.DONE] * len(ended), ended
    assert "resuming after step 4" in ended[0].output
    with reference.floatx():  # The file has averages of the weights, as fit leaves them.
        model = keras.saving.load_model(runs.folder / "output" / outputs.MODEL, compile=False)
        return weights.difference(model.get_weights(), weights_of_one_process)


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@pytest.mark.parametrize("row", repeats.some(ROWS, IN_CI), ids=" with ".join)
def test_a_killed_job_ends_with_the_weights_of_one_process(
    runs: trainings.Runs, row: tuple[str, str]
) -> None:
    difference = measure_difference(runs, *row)
    print(f"{' with '.join(row)}: largest difference of a weight {difference:.0e}")
    assert difference <= weights.TOLERANCE
