"""Nodes whose clock is wrong, and names that a TFJob has not given up yet."""

import datetime
from typing import Any

import pytest

from testing.operator import objects
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

CHIEF = resources.PODS.path("default", "digits-chief-0")


@pytest.mark.parametrize("ahead", [0, 3600])
async def test_a_node_whose_clock_is_ahead_delays_no_restart(ahead: int) -> None:
    world = MemoryCluster()
    async with world.running(objects.job()):
        await world.start_pods()
        for index in (0, 1):
            pod = world.api.object(resources.PODS.path("default", f"digits-worker-{index}"))
            finished_at = (world.clock.utc() + datetime.timedelta(seconds=ahead)).isoformat()
            terminated = {"exitCode": 75, "reason": "Error", "finishedAt": finished_at}
            pod["status"] = {"phase": "Failed", **objects.container(terminated=terminated)}
            world.api.touch(resources.PODS.path("default", f"digits-worker-{index}"))
        await world.engine.run_until_quiet(seconds=5)
        assert world.status["attempt"] == 1, "a lost peer waits for the peer's own exit"
        await world.engine.run_until_quiet(seconds=6)
        assert world.status["attempt"] == 2


def of_a_tfjob(**metadata: Any) -> dict[str, Any]:
    pod = objects.pod("digits-chief-0")
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "digits", "uid": "old"}
    pod["metadata"] |= {"ownerReferences": [{**owner, "controller": True}], **metadata}
    return pod


async def test_the_pods_of_a_tfjob_of_the_name_are_waited_for() -> None:
    world = MemoryCluster()
    await world.api.create(resources.PODS, "default", of_a_tfjob())
    async with world.running(objects.job()):
        assert world.status["state"] == "Pending"
        [refused] = [
            condition
            for condition in world.status["conditions"]
            if condition["type"] == "CreationRefused"
        ]
        assert refused["reason"] == names.Reason.NAME_CONFLICT
        assert "Delete the TFJob" in refused["message"]
        world.api.object(CHIEF)["metadata"]["deletionTimestamp"] = world.clock.utc().isoformat()
        world.api.touch(CHIEF)
        await world.engine.run_until_quiet(seconds=10)
        assert world.status["state"] == "Pending"
        world.api.remove(CHIEF)
        await world.engine.run_until_quiet(seconds=10)
        await world.engine.run_until_quiet(seconds=10)
        await world.start_pods()
        assert world.status["state"] == "Running"


async def test_a_pod_that_is_being_deleted_is_waited_for_whosever_it_was() -> None:
    world = MemoryCluster()
    stamp = world.clock.utc().isoformat()
    pod = of_a_tfjob(ownerReferences=[], deletionTimestamp=stamp)
    await world.api.create(resources.PODS, "default", pod)
    async with world.running(objects.job()):
        assert world.status["state"] == "Pending"
        world.api.remove(CHIEF)
        await world.engine.run_until_quiet(seconds=10)
        await world.start_pods()
        assert world.status["state"] == "Running"
