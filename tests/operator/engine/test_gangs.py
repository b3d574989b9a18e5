"""Gangs without their scheduler, with it installed later, and on the scheduler of Kubernetes."""

import asyncio
import pathlib
from typing import Any

import pytest

from testing.cluster import lifecycle, settings
from testing.operator import harness, objects, places
from tfparallel_operator.api import names
from tfparallel_operator.engine import client, credentials, resources

pytestmark = pytest.mark.control_plane

_, VOLCANO, KUBERNETES = resources.POD_GROUPS

SETTLED_SECONDS = 5.0
"""What a scheduler that would bind a pod takes at most."""


def definition() -> dict[str, Any]:
    """Return a definition of Volcano's PodGroups that takes any fields."""
    group, version = VOLCANO.api_version.split("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


async def test_without_its_scheduler_a_job_says_so_and_goes_on_when_that_is_installed(
    place: harness.Place,
) -> None:
    policy = {"minAvailable": 2, "queue": "research", "minResources": {"cpu": 3}}
    job = objects.job(scheduling={"gang": "Volcano"}, runPolicy={"schedulingPolicy": policy})
    path = VOLCANO.path(place.namespace, "digits")
    async with place.operator():
        await place.create_job(job)

        async def told() -> bool:
            found = await place.condition("CreationRefused")
            return found.get("reason") == names.Reason.GANG_SCHEDULER_NOT_INSTALLED

        await harness.until("the job says that there is no scheduler", told)
        message = (await place.condition("CreationRefused"))["message"]
        assert f"does not know PodGroups of {VOLCANO.api_version}: install" in message
        assert await place.pods() == {}
        place.kubectl("apply", "-f", "-", given=definition())
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
            place.kubectl("delete", "crd", definition()["metadata"]["name"])


@pytest.mark.usefixtures("processes")
@pytest.mark.timeout(900)
async def test_the_scheduler_of_kubernetes_binds_all_pods_or_none(tmp_path: pathlib.Path) -> None:
    """One node of four GPUs, for gangs of three and of two workers with two GPUs each."""
    wanted = settings.Light(controllers=True, nodes=1, gang_scheduling=True)
    cluster = places.install(lifecycle.up("gangs", wanted, tmp_path / "gangs"))
    try:
        async with client.Client(credentials.find(str(cluster.kubeconfig))) as api:
            place = harness.Place(api, cluster, places.fresh_name())
            await place.create_namespace()
            async with place.operator():
                await _too_many_and_few_enough(place)
    finally:
        lifecycle.down("gangs", tmp_path / "gangs")


async def _too_many_and_few_enough(place: harness.Place) -> None:
    await place.create_job(_of_workers("many", 3))
    await place.until_pods("many-worker-0", "many-worker-1", "many-worker-2")

    async def told() -> bool:
        roles = (await place.status("many")).get("replicas", {})
        return "Unschedulable" in roles.get("Worker", {}).get("reason", "")

    await harness.until("the status has the scheduler's words", told)
    await asyncio.sleep(SETTLED_SECONDS)
    assert not any(pod["spec"].get("nodeName") for pod in (await place.pods()).values())
    await place.create_job(_of_workers("few", 2))
    await place.until_state("Running", "few")
    group = await place.api.get(KUBERNETES.path(place.namespace, "few-1"))
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}


def _of_workers(name: str, count: int) -> harness.Body:
    job = objects.job(name, workers=0, scheduling={"gang": "Kubernetes"})
    worker = {"replicas": count, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    return job
