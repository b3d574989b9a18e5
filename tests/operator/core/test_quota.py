"""A job in a queue asks for the quota that its pods use, also after an edit."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders, queues
from tfparallel_operator.api import names
from tfparallel_operator.core import observation

MEMORY = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}

_LIMITS = {"limits": {"nvidia.com/gpu": "8"}}
GPUS = {"spec": {"containers": [{"name": "tensorflow", "image": "i", "resources": _LIMITS}]}}


def admitted(**job: Any) -> builders.World:
    world = queues.queued_world(trainer=True, **job)
    queues.admit(world)
    world.run()
    world.settle()
    assert world.status.state is names.State.RUNNING
    return world


def edit(world: builders.World, **changes: object) -> None:
    specs = {
        role: spec.model_copy(update=changes)
        for role, spec in world.job.spec.tf_replica_specs.items()
    }
    spec = world.job.spec.model_copy(update={"tf_replica_specs": specs})
    world.job = world.job.model_copy(update={"spec": spec})


def limits(world: builders.World) -> dict[str, str]:
    [*_, workload] = [one for one in world.manifests if one["kind"] == "Workload"]
    containers = workload["spec"]["podSets"][-1]["template"]["spec"]["containers"]
    resource_limits: dict[str, str] = containers[0]["resources"]["limits"]
    return resource_limits


@pytest.mark.parametrize("changes", [{"devices": 8}, {"template": GPUS}])
def test_devices_that_an_edit_adds_are_asked_for(changes: dict[str, object]) -> None:
    world = admitted(worker=2)
    edit(world, **changes)
    world.settle()
    assert world.pods == {}
    assert limits(world) == {"nvidia.com/gpu": "8"}
    queues.admit(world)
    assert len(world.pods) == 2


def test_memory_that_has_grown_is_asked_for() -> None:
    world = admitted(worker=2, run_policy={"outOfMemory": {"maxMemory": "8Gi"}})
    container = {"name": "tensorflow", "image": "i", "resources": MEMORY}
    edit(world, template={"spec": {"containers": [container]}})
    world.settle()
    queues.admit(world)
    world.run()
    world.settle()
    before = limits(world)["memory"]
    how = observation.Exit(137, "OOMKilled", "", world.now)
    world.update("job-worker-0", phase=observation.Phase.FAILED, exit=how)
    world.settle()
    assert world.pods == {}
    assert (before, limits(world)["memory"]) == ("1Gi", "2048Mi")
    assert world.status.restarts.disruption == 0
    queues.admit(world)
    assert len(world.pods) == 2


def test_a_workload_of_an_older_release_stays() -> None:
    world = admitted(worker=2)
    assert world.workload is not None
    world.workload = dataclasses.replace(world.workload, resources="")
    edit(world, devices=8)
    world.settle()
    assert len(world.pods) == 2
