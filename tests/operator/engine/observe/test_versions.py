"""Versions of the APIs of others: the newest that is served, and documents of all that are read."""

import asyncio
from typing import Any

import pytest

from testing.operator import memory_api, memory_cluster
from tfparallel_operator.api import types
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core import observation
from tfparallel_operator.engine.observe import children, flavors, informer, owned, records
from tfparallel_operator.engine.write import priorities

OLDER = "kueue.x-k8s.io/v1beta1"
NEWEST = "kueue.x-k8s.io/v1beta2"
KUBERNETES = owned.POD_GROUPS[types.GangScheduler.KUBERNETES]

METADATA = {"name": "tfparalleljob-digits", "uid": "u", "resourceVersion": "7", "namespace": "n"}
STATUS: dict[str, Any] = {
    "admission": {
        "clusterQueue": "gpus",
        "podSetAssignments": [
            {
                "count": 2,
                "flavors": {"nvidia.com/gpu": "fast"},
                "name": "worker",
                "resourceUsage": {"nvidia.com/gpu": "4"},
            }
        ],
    },
    "admissionChecks": [
        {
            "lastTransitionTime": "2026-11-24T01:00:00Z",
            "message": "The nodes are there",
            "name": "provisioning",
            "podSetUpdates": [{"name": "worker", "nodeSelector": {"pool": "a"}}],
            "state": "Ready",
        },
        {
            "lastTransitionTime": "2026-11-24T01:00:00Z",
            "message": "",
            "name": "budget",
            "state": "Pending",
        },
    ],
    "conditions": [{"type": "QuotaReserved", "status": "True"}],
    "reclaimablePods": [{"name": "worker", "count": 1}],
}
POD_SETS = [{"count": 2, "name": "worker", "template": {"spec": {"containers": []}}}]
URGENT_OLDER = {
    "priorityClassName": "urgent",
    "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass",
}
URGENT_NEWEST = {
    "priorityClassRef": {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "urgent",
    }
}
TOPOLOGY_OLDER = {
    "levels": ["kubernetes.io/hostname"],
    "domains": [{"values": ["node-1"], "count": 2}],
}
TOPOLOGY_NEWEST = {
    "levels": ["kubernetes.io/hostname"],
    "slices": [
        {
            "domainCount": 1,
            "valuesPerLevel": [{"universal": "node-1"}],
            "podCounts": {"universal": 2},
        }
    ],
}


def workload(priority: dict[str, Any], topology: dict[str, Any] | None = None) -> dict[str, Any]:
    [assignment] = STATUS["admission"]["podSetAssignments"]
    if topology is not None:
        assignment = {**assignment, "topologyAssignment": topology}
    admission = {**STATUS["admission"], "podSetAssignments": [assignment]}
    spec = {"active": True, "podSets": POD_SETS, "queueName": "research", "priority": 1000}
    return {
        "metadata": METADATA,
        "spec": spec | priority,
        "status": {**STATUS, "admission": admission},
    }


@pytest.mark.parametrize(
    ("older", "newest"),
    [
        (workload(URGENT_OLDER), workload(URGENT_NEWEST)),
        (workload(URGENT_OLDER, TOPOLOGY_OLDER), workload(URGENT_NEWEST, TOPOLOGY_NEWEST)),
    ],
)
def test_workloads_of_both_versions_say_the_same(
    older: dict[str, Any], newest: dict[str, Any]
) -> None:
    workload = records.workload(newest)
    assert records.workload(older) == workload
    assert (workload.queue, workload.priority_class) == ("research", "urgent")
    assert workload.reclaimable == {"worker": 1}
    assert workload.pending_checks == ("budget: pending",)
    assert workload.admission["worker"].flavors == ("fast",)
    assert workload.admission["worker"].updates[0]["nodeSelector"] == {"pool": "a"}
    placed = "topologyAssignment" in newest["status"]["admission"]["podSetAssignments"][0]
    assert workload.admission["worker"].placed is placed


@pytest.mark.parametrize(
    "priority",
    [
        {},
        {"priorityClassName": "high", "priorityClassSource": "scheduling.k8s.io/priorityclass"},
        {
            "priorityClassRef": {
                "group": "scheduling.k8s.io",
                "kind": "PriorityClass",
                "name": "high",
            }
        },
    ],
)
def test_a_priority_class_of_pods_is_no_label_of_the_job(priority: dict[str, Any]) -> None:
    assert records.workload(workload(priority)).priority_class == ""


async def _with_class(api: memory_api.MemoryApi) -> None:
    manifest = {"metadata": {"name": "urgent"}, "value": 1000}
    await api.create(resources.WORKLOAD_PRIORITY_CLASSES, None, manifest)


async def test_a_workload_is_written_in_the_version_that_is_served() -> None:
    api = memory_api.MemoryApi()
    await _with_class(api)
    manifest = {"apiVersion": NEWEST, "kind": "Workload", "spec": dict(URGENT_NEWEST)}
    written = await priorities.with_priority(api, manifest)
    assert written["spec"] == URGENT_NEWEST | {"priority": 1000}


async def test_a_workload_of_v1beta1_names_its_class_as_that_version_does() -> None:
    api = memory_api.MemoryApi()
    older = resources.WORKLOAD_PRIORITY_CLASSES.at(OLDER)
    await api.create(older, None, {"metadata": {"name": "urgent"}, "value": 1000})
    manifest = {"apiVersion": OLDER, "kind": "Workload", "spec": dict(URGENT_NEWEST)}
    written = await priorities.with_priority(api, manifest)
    assert written["spec"] == URGENT_OLDER | {"priority": 1000}


@pytest.mark.parametrize("version", [OLDER, NEWEST])
async def test_the_newest_version_that_is_served_is_used(version: str) -> None:
    api = memory_api.MemoryApi()
    api.versions[resources.WORKLOADS] = version
    assert (await api.served(resources.WORKLOADS)).api_version == version


async def test_a_group_without_the_resource_does_not_serve_it() -> None:
    """As scheduling.k8s.io/v1beta1 in an API server whose PodGroups are of v1alpha2."""
    api = memory_api.MemoryApi()
    with pytest.raises(errors.NotFound, match=r"serves no podgroups of scheduling\.k8s\.io"):
        await api.served(KUBERNETES)


async def test_a_version_that_is_served_no_longer_is_left_for_the_newer_one() -> None:
    api = memory_api.MemoryApi()
    api.versions[resources.WORKLOADS] = OLDER
    workloads = informer.Informer(
        api, resources.WORKLOADS, (), records.workload, lambda _: None, optional=True
    )
    await workloads.refresh()
    assert workloads.served.api_version == OLDER
    api.versions.clear()
    await workloads.refresh()
    assert workloads.served.api_version == NEWEST


async def test_flavors_are_read_in_the_version_of_workloads() -> None:
    api = memory_api.MemoryApi()
    api.versions[resources.WORKLOADS] = OLDER
    followed = children.ChildIndex(api, (), lambda _: None)
    task = asyncio.create_task(memory_cluster.follow(followed))
    await followed.wait_synced()
    flavor = {"metadata": {"name": "fast"}, "spec": {"nodeLabels": {"pool": "a"}}}
    await api.create(resources.RESOURCE_FLAVORS.at(OLDER), None, flavor)
    cache = flavors.Flavors(api, followed)
    admitted = records.workload(workload({}))
    assert await cache.read([admitted]) == {"fast": observation.Flavor({"pool": "a"}, ())}
    task.cancel()
