"""Gangs without their scheduler, with it installed later, and on the scheduler of Kubernetes."""

import asyncio
import json

import pytest

from testing.cluster import handle
from testing.operator import harness, objects, places, volcano
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

_, _, KUBERNETES = resources.POD_GROUPS

SETTLED_SECONDS = 5.0
"""What a scheduler that would bind a pod takes at most."""


async def test_without_its_scheduler_a_job_says_so_and_goes_on_when_that_is_installed(
    place: harness.Place,
) -> None:
    policy = {"minAvailable": 2, "queue": "research", "minResources": {"cpu": 3}}
    job = objects.job(scheduling={"gang": "Volcano"}, runPolicy={"schedulingPolicy": policy})
    path = volcano.POD_GROUPS.path(place.namespace, "digits")
    async with place.operator():
        await place.create_job(job)
        refused = await place.until_refused(names.Reason.GANG_SCHEDULER_NOT_INSTALLED)
        message = refused["message"]
        assert f"does not know PodGroups of {volcano.POD_GROUPS.group} (see" in message
        assert "Install the gang scheduler, or change scheduling.gang" in message
        assert await place.pods() == {}
        place.kubectl("apply", "-f", "-", body=volcano.definition())
        try:
            await place.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
            group = await place.api.get(path)
            assert group["spec"] == {
                "minMember": 2,
                "queue": "research",
                "minResources": {"cpu": 3},
            }
            pod = (await place.pods())["digits-worker-1"]
            assert pod["metadata"]["annotations"][names.ANNOTATION_POD_GROUP] == "digits"
            assert pod["spec"]["schedulerName"] == names.VOLCANO
            place.change({"runPolicy": {"suspend": True}})
            await place.until_gone(path)
        finally:
            place.kubectl("delete", "crd", volcano.definition()["metadata"]["name"])


@pytest.mark.parametrize(
    ("cluster", "version"),
    [("gang_scheduling_cluster", "v1beta1"), ("alpha_gangs_cluster", "v1alpha2")],
    indirect=["cluster"],
    scope="session",
)
async def test_the_scheduler_of_kubernetes_binds_all_pods_or_none(
    cluster: handle.Cluster, version: str
) -> None:
    """One node of four GPUs, for gangs of three and of two workers with two GPUs each."""
    async with places.on(cluster) as place, place.operator():
        await _too_many_and_few_enough(place)
        served = await place.api.served(KUBERNETES)
        assert served.api_version == f"scheduling.k8s.io/{version}"
        group = await place.api.get(served.path(place.namespace, "few-1"))
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


async def _too_many_and_few_enough(place: harness.Place) -> None:
    await place.create_job(_of_workers("many", 3))
    await place.until_pods("many-worker-0", "many-worker-1", "many-worker-2")
    await place.until_reason("Worker", "Unschedulable", "many")
    await asyncio.sleep(SETTLED_SECONDS)
    assert not any(pod["spec"].get("nodeName") for pod in (await place.pods()).values())
    await place.create_job(_of_workers("few", 2))
    await place.until_state("Running", "few")


@pytest.mark.parametrize(
    "cluster", ["gang_scheduling_cluster", "alpha_gangs_cluster"], indirect=True, scope="session"
)
async def test_a_gang_of_kubernetes_with_a_priority_class_is_bound(
    cluster: handle.Cluster,
) -> None:
    urgent = {"metadata": {"name": "urgent"}, "value": 1000}
    urgent |= {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.run_kubectl("apply", "-f", "-", input=json.dumps(urgent))
    job = _of_workers("urgent", 2)
    job["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "urgent"}}
    async with places.on(cluster) as place, place.operator():
        await place.create_job(job)
        await place.until_state("Running", "urgent")
        assert {pod["spec"]["priority"] for pod in (await place.pods()).values()} == {1000}


@pytest.mark.parametrize(
    "cluster", ["gang_scheduling_cluster", "alpha_gangs_cluster"], indirect=True, scope="session"
)
async def test_a_gang_of_kubernetes_that_waits_starts_after_one_of_its_pods_was_deleted(
    cluster: handle.Cluster,
) -> None:
    job = _of_workers("gang", 2)
    job["spec"]["tfReplicaSpecs"]["PS"] = {"replicas": 1, "template": objects.template()}
    async with places.on(cluster) as place, place.operator():
        await place.create_job(_of_workers("first", 1))
        await place.until_state("Running", "first")
        await place.create_job(job)
        await place.until_reason("Worker", "Unschedulable", "gang")
        place.kubectl("delete", "pod", "gang-worker-1")
        await place.until_status("all run again", lambda status: status.get("attempt") == 2, "gang")
        place.kubectl("delete", "tfpj", "first")
        await place.until_state("Running", "gang")


def _of_workers(name: str, count: int) -> harness.Body:
    job = objects.job(name, workers=0, scheduling={"gang": "Kubernetes"})
    worker = {"replicas": count, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    return job
