"""Gangs on the real scheduler of the scheduler-plugins, whose build takes minutes.

Two nodes of four GPUs each, which pretend to run pods.
"""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from testing import waiting
from testing.cluster import coscheduling, handle
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import types
from tfparallel_operator.engine.observe import owned

pytestmark = [pytest.mark.timeout(1200)]

GROUPS = owned.POD_GROUPS[types.GangScheduler.COSCHEDULING]

_OF_THE_SCHEDULER = re.compile(
    r"[Pp]od ?[Gg]roup|sibling pods|optimistic rejection|Insufficient nvidia\.com/gpu"
)
"""What it says of a gang without place; which of it stands last depends on its tries."""

SETTLED_SECONDS = 5.0
"""What a scheduler that would bind a pod takes at most."""


@pytest.fixture(scope="module")
def cluster(coscheduling_cluster: handle.Cluster) -> handle.Cluster:
    """Two nodes of four GPUs, and the scheduler."""
    return namespaces.install(coscheduling_cluster)


@pytest.fixture
async def namespace(cluster: handle.Cluster) -> AsyncIterator[Namespace]:
    """A namespace of the test's own, empty of pods before and after."""
    async with namespaces.open_in(cluster) as namespace:
        yield namespace


def a_gang(name: str = "digits", workers: int = 3, **spec: object) -> namespaces.Body:
    """Return a job whose workers need two GPUs each: the nodes have place for four."""
    job = objects.job(name, workers=0, scheduling={"gang": "Coscheduling"}, **spec)
    worker = {"replicas": workers, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    return job


async def bound(namespace: Namespace) -> set[str]:
    """Return the pods that have a node."""
    return {name for name, pod in (await namespace.pods()).items() if pod["spec"].get("nodeName")}


async def test_with_place_for_all_every_pod_is_bound(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(a_gang())
        await namespace.until_state("Running")
    assert await bound(namespace) == {f"digits-worker-{index}" for index in range(3)}
    pod = (await namespace.pods())["digits-worker-0"]
    assert pod["spec"]["schedulerName"] == coscheduling.NAME
    group = await namespace.api.get(GROUPS.path(namespace.name, "digits"))
    assert group["spec"] == {"minMember": 3}


async def test_with_too_few_gpus_none_is_bound_and_the_status_says_why(
    namespace: Namespace,
) -> None:
    async with namespace.operator():
        await namespace.create_job(a_gang(workers=5))
        await namespace.until_pods(*(f"digits-worker-{index}" for index in range(5)))

        async def words() -> str:
            roles = (await namespace.status()).get("replicas", {})
            return str(roles.get("Worker", {}).get("reason", ""))

        await waiting.until_async(
            words,
            "the status has the scheduler's words",
            when=_OF_THE_SCHEDULER.search,
        )
        await asyncio.sleep(SETTLED_SECONDS)
        assert await bound(namespace) == set()
        assert "digits" in (await namespace.condition("Running"))["message"]


async def test_what_an_ordinary_scheduler_would_bind_of_it_waits_for_all(
    namespace: Namespace,
) -> None:
    """A second gang waits while the first has the GPUs, and starts when they are free."""
    async with namespace.operator():
        await namespace.create_job(a_gang("first", 3))
        await namespace.until_state("Running", "first")
        await namespace.create_job(a_gang("second", 2))
        await asyncio.sleep(SETTLED_SECONDS)
        assert {name for name in await bound(namespace) if name.startswith("second")} == set()
        namespace.change({"runPolicy": {"suspend": True}}, "first")
        await namespace.until_state("Running", "second")
        with pytest.raises(Exception, match="not found"):
            await namespace.api.get(GROUPS.path(namespace.name, "first"))


async def test_a_new_attempt_is_a_gang_again(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(a_gang(workers=4))
        await namespace.until_state("Running")
        await namespace.end("digits-worker-1", 1)
        workers = [f"digits-worker-{index}" for index in range(4)]
        await namespace.until_pods(*workers, attempt=2)
        await namespace.until_state("Running")
        pods = await namespace.pods()
        assert {
            pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for pod in pods.values()
        } == {"digits"}


async def test_fewer_than_all_may_start_when_the_job_says_so(namespace: Namespace) -> None:
    policy = {"schedulingPolicy": {"minAvailable": 3, "scheduleTimeoutSeconds": 20}}
    async with namespace.operator():
        await namespace.create_job(a_gang(workers=5, runPolicy=policy))

        async def four() -> bool:
            return len(await bound(namespace)) == 4

        await waiting.until_async(four, "as many pods as there is place for are bound", 60)
