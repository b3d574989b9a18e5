"""Gangs without their scheduler, with it installed later, and on the scheduler of Kubernetes."""

import asyncio
import json

import pytest

from testing.cluster import handle
from testing.operator import namespaces, objects, volcano
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names, types
from tfparallel_operator.engine.observe import owned

KUBERNETES = owned.POD_GROUPS[types.GangScheduler.KUBERNETES]

SETTLED_SECONDS = 5.0
"""What a scheduler that would bind a pod takes at most."""


async def test_without_its_scheduler_a_job_says_so_and_goes_on_when_that_is_installed(
    namespace: Namespace,
) -> None:
    policy = {"minAvailable": 2, "queue": "research", "minResources": {"cpu": 3}}
    job = objects.job(scheduling={"gang": "Volcano"}, runPolicy={"schedulingPolicy": policy})
    path = volcano.POD_GROUPS.path(namespace.name, "digits")
    async with namespace.operator():
        await namespace.create_job(job)
        refused = await namespace.until_refused(names.Reason.GANG_SCHEDULER_NOT_INSTALLED)
        message = refused["message"]
        assert f"does not know PodGroups of {volcano.POD_GROUPS.group} (see" in message
        assert "Install the gang scheduler, or change scheduling.gang" in message
        assert await namespace.pods() == {}
        namespace.kubectl("apply", "-f", "-", body=volcano.definition())
        try:
            await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
            group = await namespace.api.get(path)
            assert group["spec"] == {
                "minMember": 2,
                "queue": "research",
                "minResources": {"cpu": 3},
            }
            pod = (await namespace.pods())["digits-worker-1"]
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "digits"
            assert pod["spec"]["schedulerName"] == "volcano"
            namespace.change({"runPolicy": {"suspend": True}})
            await namespace.until_gone(path)
        finally:
            namespace.kubectl("delete", "crd", volcano.definition()["metadata"]["name"])


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
    async with namespaces.open_in(cluster) as namespace, namespace.operator():
        await _too_many_and_few_enough(namespace)
        served = await namespace.api.served(KUBERNETES)
        assert served.api_version == f"scheduling.k8s.io/{version}"
        group = await namespace.api.get(served.path(namespace.name, "few-1"))
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


async def _too_many_and_few_enough(namespace: Namespace) -> None:
    await namespace.create_job(_of_workers("many", 3))
    await namespace.until_pods("many-worker-0", "many-worker-1", "many-worker-2")
    await namespace.until_reason("Worker", "Unschedulable", "many")
    await asyncio.sleep(SETTLED_SECONDS)
    assert not any(pod["spec"].get("nodeName") for pod in (await namespace.pods()).values())
    await namespace.create_job(_of_workers("few", 2))
    await namespace.until_state("Running", "few")


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
    async with namespaces.open_in(cluster) as namespace, namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Running", "urgent")
        assert {pod["spec"]["priority"] for pod in (await namespace.pods()).values()} == {1000}


@pytest.mark.parametrize(
    "cluster", ["gang_scheduling_cluster", "alpha_gangs_cluster"], indirect=True, scope="session"
)
async def test_a_gang_of_kubernetes_that_waits_starts_after_one_of_its_pods_was_deleted(
    cluster: handle.Cluster,
) -> None:
    job = _of_workers("gang", 2)
    job["spec"]["tfReplicaSpecs"]["PS"] = {"replicas": 1, "template": objects.template()}
    async with namespaces.open_in(cluster) as namespace, namespace.operator():
        await namespace.create_job(_of_workers("first", 1))
        await namespace.until_state("Running", "first")
        await namespace.create_job(job)
        await namespace.until_reason("Worker", "Unschedulable", "gang")
        namespace.kubectl("delete", "pod", "gang-worker-1")
        await namespace.until_status(
            "all run again", lambda status: status.get("attempt") == 2, "gang"
        )
        namespace.kubectl("delete", "tfpj", "first")
        await namespace.until_state("Running", "gang")


def _of_workers(name: str, count: int) -> namespaces.Body:
    job = objects.job(name, workers=0, scheduling={"gang": "Kubernetes"})
    worker = {"replicas": count, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    return job
