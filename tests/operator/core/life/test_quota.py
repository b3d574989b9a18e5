"""A job in a queue asks for the quota that its pods use, also after an edit."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders, queues
from tfparallel_operator.api import names
from tfparallel_operator.core import observation
from tfparallel_operator.core.life import restarts

MEMORY: dict[str, Any] = {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}

_LIMITS = {"limits": {"nvidia.com/gpu": "8"}}
GPUS = {"spec": {"containers": [{"name": "tensorflow", "image": "i", "resources": _LIMITS}]}}


def admitted(**job: Any) -> builders.World:
    world = queues.queued_world(trainer=True, **job)
    queues.admit(world)
    world.run().run_until_quiet()
    assert world.status.state is names.State.RUNNING
    return world


def edit(world: builders.World, **changes: object) -> None:
    specs = {
        role: spec.model_copy(update=changes)
        for role, spec in world.job.spec.tf_replica_specs.items()
    }
    world.edit_spec(tf_replica_specs=specs)


def limits(world: builders.World) -> dict[str, str]:
    [*_, workload] = [created for created in world.manifests if created["kind"] == "Workload"]
    containers = workload["spec"]["podSets"][-1]["template"]["spec"]["containers"]
    resource_limits: dict[str, str] = containers[0]["resources"]["limits"]
    return resource_limits


@pytest.mark.parametrize("changes", [{"devices": 8}, {"template": GPUS}])
def test_devices_that_an_edit_adds_are_asked_for(changes: dict[str, object]) -> None:
    world = admitted(worker=2)
    edit(world, **changes)
    world.run_until_quiet()
    assert world.pods == {}
    assert limits(world) == {"nvidia.com/gpu": "8"}
    queues.admit(world)
    assert len(world.pods) == 2


def test_memory_that_has_grown_is_asked_for() -> None:
    world = admitted(worker=2, run_policy={"outOfMemory": {"maxMemory": "8Gi"}})
    edit(world, template=template(container(**MEMORY)))
    world.run_until_quiet()
    queues.admit(world)
    world.run().run_until_quiet()
    before = limits(world)["memory"]
    how = observation.Exit(137, "OOMKilled", "", world.now)
    world.update("job-worker-0", phase=observation.Phase.FAILED, exit=how).run_until_quiet()
    assert world.pods == {}
    assert (before, limits(world)["memory"]) == ("1Gi", "2048Mi")
    assert world.status.restarts.disruption == 0
    queues.admit(world)
    assert len(world.pods) == 2


@pytest.mark.parametrize("record", ["", "0123456789abcdef-0123456789abcdef"])
def test_a_workload_of_an_older_release_stays(record: str) -> None:
    world = admitted(worker=2)
    assert world.workload is not None
    world.workload = dataclasses.replace(world.workload, resources=record)
    edit(world, devices=8)
    world.run_until_quiet()
    assert len(world.pods) == 2


def test_a_workload_of_an_older_release_that_waits_is_written_again() -> None:
    world = queues.queued_world(trainer=True, worker=2)
    old = queues.workload_of(world)
    world.workload = dataclasses.replace(old, resources="0123456789abcdef-0123456789abcdef")
    world.run_until_quiet()
    assert queues.workload_of(world).resources == old.resources


def container(
    name: str = "tensorflow",
    limits: dict[str, Any] | None = None,
    requests: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    container_resources = {"limits": limits or {}, "requests": requests or {}}
    return {"name": name, "image": "i", "resources": container_resources, **fields}


def template(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": list(containers)}}


ONE = template(container(limits={"cpu": "1", "memory": "1Gi"}), container("log"))


@pytest.mark.parametrize(
    "same",
    [
        template(container(limits={"cpu": "1000m", "memory": "1024Mi"}), container("log")),
        template(container(limits={"cpu": 1, "memory": 2**30}), container("log")),
        template(
            container(limits={"cpu": "1", "memory": "1Gi"}, requests={"cpu": 1}), container("log")
        ),
        template(
            container(limits={"cpu": "1", "memory": "1Gi"}, image="newer", env=[], command=["c"]),
            container("logger"),
        ),
    ],
)
def test_what_kueue_takes_for_equal_keeps_the_admission(same: dict[str, Any]) -> None:
    """Kueue compares requests and limits of containers as numbers, and nothing else of them."""
    world = queues.queued_world(trainer=True, worker=2)
    edit(world, template=ONE)
    world.run_until_quiet()
    queues.admit(world)
    before = queues.workload_of(world)
    edit(world, template=same)
    world.run_until_quiet()
    assert (queues.workload_of(world).uid, len(world.pods)) == (before.uid, 2)


@pytest.mark.parametrize(
    "other",
    [
        template(container(limits={"cpu": "1001m", "memory": "1Gi"}), container("log")),
        template(container(limits={"cpu": "1", "memory": "1Gi"}), container("log", {"cpu": "1m"})),
        template(container(limits={"cpu": "1", "memory": "1Gi"})),
        template(
            container(limits={"cpu": "1", "memory": "1Gi"}, requests={"cpu": "500m"}),
            container("log"),
        ),
    ],
)
def test_what_kueue_takes_for_different_is_asked_for(other: dict[str, Any]) -> None:
    world = queues.queued_world(trainer=True, worker=2)
    edit(world, template=ONE)
    world.run_until_quiet()
    queues.admit(world)
    before = queues.workload_of(world)
    edit(world, template=other)
    world.run_until_quiet()
    assert queues.workload_of(world).uid != before.uid
    assert world.pods == {}


POD_RESOURCES = {"spec": {"resources": {"limits": {"memory": "8Gi"}}}}
OVERHEAD = {"spec": {"runtimeClassName": "kata"}}


@pytest.mark.parametrize("template", [POD_RESOURCES, OVERHEAD])
def test_resources_of_whole_pods_that_an_edit_adds_are_asked_for(template: dict[str, Any]) -> None:
    world = admitted(worker=2)
    edit(world, template=template)
    world.run_until_quiet()
    assert world.pods == {}
    [*_, workload] = [created for created in world.manifests if created["kind"] == "Workload"]
    spec = workload["spec"]["podSets"][-1]["template"]["spec"]
    assert template["spec"].items() <= spec.items()


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"zone": "b"}},
        {"tolerations": [{"key": "spot", "operator": "Exists"}]},
        {"priorityClassName": "high"},
    ],
)
def test_another_place_counts_while_it_waits_and_not_while_it_has_quota(
    spec: dict[str, Any],
) -> None:
    world = queues.queued_world(trainer=True, worker=2)
    first = queues.workload_of(world)
    edit(world, template={"spec": spec})
    world.run_until_quiet()
    second = queues.workload_of(world)
    assert second.uid != first.uid
    queues.admit(world)
    edit(world, template={"spec": {}})
    world.run_until_quiet()
    assert queues.workload_of(world).uid == second.uid
    assert len(world.pods) == 2


def servers() -> builders.World:
    world = admitted(chief=1, worker=3, ps=1)
    complete(world, "job-worker-1")
    return world


def complete(world: builders.World, *pods: str) -> None:
    for pod in pods:
        how = observation.Exit(0, "Completed", "", world.now)
        world.update(pod, phase=observation.Phase.SUCCEEDED, exit=how)
    world.run_until_quiet()


def test_a_completed_worker_of_servers_gives_its_quota_back() -> None:
    world = servers()
    assert queues.workload_of(world).reclaimable == {"worker": 1}
    complete(world, "job-worker-0")
    assert queues.workload_of(world).reclaimable == {"worker": 2}
    assert queues.conditions_of(world)["PodsReady"] == ("True", "Started")


def test_a_completed_pod_keeps_its_quota_while_a_sidecar_runs() -> None:
    world = admitted(chief=1, worker=2, ps=1)
    world.update("job-worker-1", lingers=True)
    complete(world, "job-worker-1")
    assert queues.workload_of(world).reclaimable == {}
    world.update("job-worker-1", lingers=False).run_until_quiet()
    assert queues.workload_of(world).reclaimable == {"worker": 1}


def test_a_gang_keeps_the_quota_of_completed_workers_for_its_next_attempt() -> None:
    world = admitted(chief=1, worker=2)
    complete(world, "job-worker-1")
    uid = queues.workload_of(world).uid
    how = observation.Exit(1, "Error", "", world.now)
    world.update("job-worker-0", phase=observation.Phase.FAILED, exit=how).run_until_quiet()
    assert queues.workload_of(world).reclaimable == {}
    assert queues.workload_of(world).uid == uid


def test_quota_that_was_returned_and_is_needed_again_is_requested() -> None:
    world = servers()
    uid = queues.workload_of(world).uid
    again = restarts.next_attempt(world.status, world.now)
    world.job = world.job.model_copy(update={"status": again})
    world.run_until_quiet()
    assert world.pods == {}
    assert queues.workload_of(world).uid != uid
    assert queues.workload_of(world).reclaimable == {}
    queues.admit(world)
    assert len(world.pods) == 5


def test_an_evicted_job_asks_for_all_its_quota_again() -> None:
    world = servers()
    uid = queues.workload_of(world).uid
    queues.evict(world)
    assert queues.workload_of(world).uid == uid
    assert queues.workload_of(world).reclaimable == {}
    queues.admit(world)
    assert len(world.pods) == 5
