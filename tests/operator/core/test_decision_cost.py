"""The work of one decision grows with the replicas of its job, and no faster."""

import dataclasses
import sys
from types import FrameType
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.core import decide

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


def calls(shape: str, workers: int, *, settled: bool) -> int:
    """Count the calls, of Python and of C, that one decision makes."""
    trainer = "command" not in shape
    job = builders.a_job(trainer=trainer, worker=workers, spec=SHAPES[shape])
    world = builders.World(job, host_port=10_000)
    if settled:
        world.settle()
        world.run()
        world.settle()
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


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_decision_is_linear_in_replicas(shape: str, settled: bool) -> None:
    calls(shape, 20, settled=settled)  # What is cached once for all is not counted.
    few, many = (calls(shape, count, settled=settled) for count in (80, 320))
    assert many < 5 * few


def test_while_creation_is_refused_a_decision_builds_no_manifest() -> None:
    world = builders.World(builders.a_job(trainer=True, worker=2))
    children = dataclasses.replace(world.children(), may_create=False)
    refused = decide.decide(world.job, children, world.now, world.settings)
    assert refused == dataclasses.replace(world.decide(), creations=())
