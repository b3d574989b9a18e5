"""Replicas that run out of memory: what they ask for the next time."""

import dataclasses
from typing import Any

from testing.operator import builders
from tfparallel_operator.api import load, policies, types
from tfparallel_operator.core import observation, replicas
from tfparallel_operator.core.pods import memory


def memory_of(world: builders.World, role: types.Role) -> dict[str, Any]:
    growths = world.status.replicas[role.value].memory_growths
    pod = builders.a_pod(world.job, replicas.Replica(role, 0), memory_growths=growths)
    resources: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return resources


def test_a_replica_out_of_memory_asks_for_more_the_next_time() -> None:
    document = builders.manifest(chief=1, worker=2)
    asked = {"requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"memory": "2Gi"}}
    for spec in document["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["resources"] = asked
        spec["restartPolicy"] = "Never"
    growth = {"growthPercent": 50, "maxMemory": "4Gi"}
    document["spec"]["runPolicy"] = {"outOfMemory": growth, "backoffLimit": 3}
    world = builders.World(load.parse_job(document))
    limits = []
    for _ in range(3):
        world.run_until_quiet()
        world.run()
        world.exit("job-worker-0", 137)
        killed = dataclasses.replace(builders.an_exit(137, world.now), reason="OOMKilled")
        world.update("job-worker-0", exit=killed).run_until_quiet()
        limits.append(memory_of(world, types.Role.WORKER)["limits"]["memory"])
    assert limits == ["3072Mi", "4Gi", "4Gi"]
    assert memory_of(world, types.Role.WORKER)["requests"] == {"memory": "3456Mi", "cpu": "1"}
    assert memory_of(world, types.Role.CHIEF) == asked
    assert world.status.restart_causes == {"OutOfMemory": 3}


def test_only_the_memory_that_a_container_asks_for_grows() -> None:
    policy = policies.OutOfMemory(growth_percent=100, max_memory="8Gi")
    container = {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}
    memory.grow(container, policy, 1)
    assert container["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "2048Mi"}}


def test_without_the_jobs_leave_memory_stays_as_it_is() -> None:
    world = builders.running(worker=1)
    killed = dataclasses.replace(builders.an_exit(137, world.now), reason="OOMKilled")
    world.update("job-worker-0", phase=observation.Phase.FAILED, exit=killed).run_until_quiet()
    assert world.status.restart_causes == {"OutOfMemory": 1}
    assert world.status.replicas["Worker"].memory_growths == 0


def test_growth_neither_shrinks_nor_passes_the_bound() -> None:
    policy = policies.OutOfMemory(max_memory="8Gi")
    assert memory.grown("1Gi", policy, 2) == "4096Mi"
    assert memory.grown("1Gi", policy, 500) == "8Gi"
    assert memory.grown("9Gi", policy, 1) == "9Gi"
    assert memory.grown("lots", policy, 1) == "lots"
