"""Which objects belong to a job: those of its namespace, its uid, and the names that we give."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testing import waiting
from testing.operator import memory_api, memory_cluster, objects
from tfparallel_operator.api import gate, types
from tfparallel_operator.api_server import client, lists, resources, streams
from tfparallel_operator.core import observation
from tfparallel_operator.engine.observe import children, owned, records

JOB = records.Owner("default", "digits", objects.UID)

NAMED = (
    (resources.PODS, "digits-worker-0"),
    (resources.SERVICES, "digits"),
    (resources.CONFIG_MAPS, "digits-tfparallel"),
    (resources.NETWORK_POLICIES, "digits-tfparallel"),
    (owned.POD_GROUPS[types.GangScheduler.COSCHEDULING], "digits"),
    (owned.POD_GROUPS[types.GangScheduler.COSCHEDULING], "digits-2"),
    (resources.WORKLOADS, "tfparalleljob-digits"),
)
IDS = [f"{resource.plural}-{name}" for resource, name in NAMED]


def _manifest(child: str, **owner: str) -> dict[str, Any]:
    metadata = objects.pod(child)["metadata"]
    metadata = {**metadata, "ownerReferences": [objects.owner(**owner)]}
    del metadata["namespace"]
    return {"metadata": metadata}


@contextlib.asynccontextmanager
async def _followed(api: client.Client) -> AsyncIterator[children.ChildIndex]:
    followed = children.ChildIndex(api, (), lambda _: None)
    task = asyncio.create_task(memory_cluster.follow(followed))
    await followed.wait_synced()
    yield followed
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("resource", "name"), NAMED, ids=IDS)
async def test_a_child_is_of_the_jobs_namespace_uid_and_a_fixed_name(
    resource: resources.Resource, name: str
) -> None:
    api = memory_api.MemoryApi()
    await api.create(resource, "default", _manifest(name))
    async with _followed(api) as followed:
        assert followed.for_job(JOB) != observation.Children()


@pytest.mark.parametrize(("resource", "name"), NAMED, ids=IDS)
@pytest.mark.parametrize(
    ("namespace", "suffix", "owner"),
    [
        ("another", "", {}),
        ("default", "x", {}),
        ("default", "-0-0", {}),
        ("default", "", {"uid": "another"}),
        ("default", "", {"name": "another"}),
    ],
    ids=["namespace", "name", "longer-name", "uid", "name-of-job"],
)
async def test_whatever_else_has_the_jobs_uid_is_not_its_child(
    resource: resources.Resource, name: str, namespace: str, suffix: str, owner: dict[str, str]
) -> None:
    api = memory_api.MemoryApi()
    await api.create(resource, namespace, _manifest(f"{name}{suffix}", **owner))
    async with _followed(api) as followed:
        assert followed.for_job(JOB) == observation.Children()


@pytest.mark.parametrize(
    ("resource", "name", "part"),
    [
        (owned.POD_GROUPS[types.GangScheduler.COSCHEDULING], "digits", "spec"),
        (resources.WORKLOADS, "tfparalleljob-digits", "status"),
    ],
)
async def test_what_decides_for_a_job_stays_as_it_was_once_it_is_beyond_the_limits(
    resource: resources.Resource, name: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    api = memory_api.MemoryApi()
    await api.create(resource, "default", _manifest(name))
    async with _followed(api) as followed:
        before = followed.for_job(JOB)
        [item] = api.items(resource)
        item[part] = {"conditions": [{"message": "x" * gate.MAX_STATUS_BYTES}]}
        api.touch(resource.path("default", name))
        await waiting.idle()
        assert followed.for_job(JOB) == before
    assert f"{resource.plural} default/{name} is not read: status: it has 131" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_pod_that_is_labelled_as_another_replica_is_not_read() -> None:
    api = memory_api.MemoryApi()
    manifest = _manifest("digits-worker-0")
    manifest["metadata"]["labels"] = objects.labels("chief")
    await api.create(resources.PODS, "default", manifest)
    async with _followed(api) as followed:
        assert followed.for_job(JOB) == observation.Children()


class FormsOfLists(memory_api.MemoryApi):
    """Notes which resources are read as metadata alone."""

    def __init__(self) -> None:
        super().__init__()
        self.brief: dict[str, set[bool]] = {}

    async def page(
        self, resource: resources.Resource, *arguments: Any, **named: Any
    ) -> lists.Listing:
        self.brief.setdefault(resource.plural, set()).add(named["metadata_only"])
        return await super().page(resource, *arguments, **named)

    async def watch(
        self, resource: resources.Resource, *arguments: Any, **named: Any
    ) -> AsyncIterator[streams.WatchEvent]:
        self.brief.setdefault(resource.plural, set()).add(named["metadata_only"])
        async for event in super().watch(resource, *arguments, **named):
            yield event


async def test_objects_that_may_be_large_and_only_have_to_exist_are_read_as_metadata() -> None:
    api = FormsOfLists()
    async with _followed(api):
        await asyncio.sleep(0)
    assert {plural: forms for plural, forms in api.brief.items() if forms != {False}} == {
        plural: {True} for plural in ("services", "configmaps", "networkpolicies")
    }
