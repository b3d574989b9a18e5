"""Claims that the operator makes for a job, or finds."""

from typing import Any

import pytest

from testing.operator import objects
from testing.operator.memory_cluster import MemoryCluster
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, resources

NAME = "digits-data"


def job(**spec: Any) -> dict[str, Any]:
    return objects.job(workers=0, volumeClaimTemplates=[objects.claim_template()], **spec)


async def existing(world: MemoryCluster, **metadata: Any) -> client.Object:
    claim = {"metadata": {"name": NAME, **metadata}, "spec": {}}
    return await world.api.create(resources.CLAIMS, "default", claim)


def refusal(world: MemoryCluster) -> dict[str, Any] | None:
    conditions = world.status["conditions"]
    return next(
        (
            condition
            for condition in conditions
            if condition["type"] == names.ConditionType.CREATION_REFUSED
        ),
        None,
    )


async def test_a_claim_of_an_earlier_run_is_used() -> None:
    world = MemoryCluster()
    before = await existing(world, labels={names.LABEL_JOB: "digits"})
    async with world.running(job()):
        await world.start_pods()
        assert world.status["state"] == "Running"
    [claim] = world.api.items(resources.CLAIMS)
    assert claim["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.parametrize("labels", [{}, {names.LABEL_JOB: "another"}])
async def test_a_claim_of_somebody_else_is_named_with_a_remedy_and_waited_for(
    labels: dict[str, str],
) -> None:
    world = MemoryCluster()
    await existing(world, labels=labels)
    async with world.running(job()):
        await world.engine.run_until_quiet()
        refused = refusal(world)
        assert refused is not None
        assert (refused["status"], refused["reason"]) == ("True", "NameConflict")
        assert f"kubectl label pvc {NAME} {names.LABEL_JOB}=digits" in refused["message"]
        assert world.api.items(resources.PODS) == ()
        [claim] = world.api.items(resources.CLAIMS)
        claim["metadata"]["labels"] = {names.LABEL_JOB: "digits"}
        world.api.touch(resources.CLAIMS.path("default", NAME))
        await world.engine.run_until_quiet(seconds=600)
        assert len(world.api.items(resources.PODS)) == 1


async def test_a_claim_that_goes_with_an_earlier_job_is_waited_for() -> None:
    world = MemoryCluster()
    earlier = [objects.owner(uid="earlier")]
    await existing(world, labels={names.LABEL_JOB: "digits"}, ownerReferences=earlier)
    async with world.running(job()):
        await world.engine.run_until_quiet()
        assert world.api.items(resources.PODS) == ()
        world.api.remove(resources.CLAIMS.path("default", NAME))
        await world.engine.run_until_quiet(seconds=600)
        assert len(world.api.items(resources.PODS)) == 1


@pytest.mark.parametrize(("policy", "left"), [("Retain", 1), ("Delete", 0)])
async def test_what_becomes_of_a_claim_with_its_job(policy: str, left: int) -> None:
    world = MemoryCluster()
    retention = {"whenDeleted": policy}
    async with world.running(job(persistentVolumeClaimRetentionPolicy=retention)):
        assert len(world.api.items(resources.CLAIMS)) == 1
        world.api.remove(resources.JOBS.path("default", "digits"))
        await world.engine.run_until_quiet()
    assert len(world.api.items(resources.CLAIMS)) == left


async def test_a_claim_that_stays_pending_is_why_pods_wait(
    namespace_with_nodes: Namespace,
) -> None:
    namespace = namespace_with_nodes
    template = objects.claim_template()
    template["spec"]["storageClassName"] = ""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": NAME}}
    job_document = objects.job(workers=0, volumeClaimTemplates=[template])
    job_document["spec"]["tfReplicaSpecs"]["Chief"]["template"] = objects.template(volumes=[volume])

    async with namespace.operator():
        await namespace.create_job(job_document)
        await namespace.until_reason("Chief", "PersistentVolumeClaims")
    claim = await namespace.api.get(resources.CLAIMS.path(namespace.name, NAME))
    assert claim["metadata"]["labels"][names.LABEL_JOB] == "digits"
