"""The work of one decision grows with the replicas of its job, and no faster."""

import dataclasses
import sys
from types import FrameType
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.core import decide, observation

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a command of a person's own": {},
    "topologyKeys": {"scheduling": {"topologyKeys": ["zone", "rack"]}},
    "ModelSplit": {
        "strategy": "ModelSplit",
        "mesh": {"data": -1, "tensor": 4, "stage": 5},
    },
    "hostNetwork": {"network": "Open", "hostNetwork": True},
    "gang": {"scheduling": {"gang": "Coscheduling"}},
}


def calls(shape: str, workers: int, stage: str) -> int:
    """Count the calls, of Python and of C, that one decision makes at a stage of the job's life."""
    trainer = "command" not in shape
    job = builders.a_job(trainer=trainer, worker=workers, spec=SHAPES[shape])
    world = builders.World(job, host_port=10_000)
    if stage != "begins":
        world.run_until_quiet()
        world.run().run_until_quiet()
    if stage == "is cleaned up":
        world.exit("job-worker-0", 0)
        world.step()
    count = 0

    def follow(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(follow)
    try:
        world.decide()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("stage", ["begins", "runs", "is cleaned up"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_decision_is_linear_in_replicas(shape: str, stage: str) -> None:
    calls(shape, 20, stage)  # What is cached once for all is not counted.
    few, many = (calls(shape, count, stage) for count in (80, 320))
    assert many < 5 * few


def test_while_creation_is_refused_a_decision_builds_no_manifest() -> None:
    world = builders.World(builders.a_job(trainer=True, worker=2))
    children, environment = world.children(), observation.Environment(may_create=False)
    refused = decide.decide(world.layout(), children, environment, world.now, world.settings)
    assert refused == dataclasses.replace(world.decide(), creations=(), creates_first=False)
