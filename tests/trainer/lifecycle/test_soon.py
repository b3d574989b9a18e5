"""How soon processes end; a loaded machine would say nothing of it, so these run alone."""

import signal
import time

import pytest

from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits

pytestmark = pytest.mark.serial

LIMIT_SECONDS = 10.0
"""As docs/how-to/model-interface.md promises."""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, exits.Exit.PEER_LOST), (signal.SIGTERM, exits.Exit.PREEMPTED)],
)
def test_a_replica_ends_soon_after_another_was_killed_or_asked_to_end(
    number: signal.Signals, code: exits.Exit, runs: trainings.Runs
) -> None:
    with runs.start(
        "slow_stream.py",
        processes=2,
        steps=launch.ENDLESS,
        globalBatchSize=20,
        checkpoint={"claim": "c", "everySteps": 7},
    ) as group:
        group.wait_for_output(0, "] step ")
        began = time.monotonic()
        group.processes[1].send_signal(number)
        assert group.processes[0].wait(150) == code, group.result(0)
        seconds = time.monotonic() - began
    print(f"the chief ended {seconds:.1f} s after {number.name} of the worker")
    assert seconds < LIMIT_SECONDS
