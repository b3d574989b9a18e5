"""The client against a real API server: conditions hold, and nothing wrong is taken in."""

import asyncio
from typing import Any

import pytest

from testing import waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import errors, resources


def _pod(name: str = "plain", **spec: Any) -> dict[str, Any]:
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": objects.template(**spec)["spec"],
    }


async def test_a_pod_is_created_strictly(namespace: Namespace) -> None:
    with pytest.raises(errors.Invalid, match=r'unknown field "spec\.restartpolicy"'):
        await namespace.api.create(resources.PODS, namespace.name, _pod(restartpolicy="Never"))
    created = await namespace.api.create(resources.PODS, namespace.name, _pod())
    assert created["metadata"]["managedFields"][0]["manager"] == names.FIELD_MANAGER


async def test_an_answer_of_metadata_alone_is_of_the_same_object(namespace: Namespace) -> None:
    answer = await namespace.api.create(resources.PODS, namespace.name, _pod(), metadata_only=True)
    stored = await namespace.api.get(resources.PODS.path(namespace.name, "plain"))
    assert answer["metadata"] == stored["metadata"]
    assert not answer.keys() & {"spec", "status"}


async def test_a_pod_that_is_wrong_is_refused_with_the_servers_sentence(
    namespace: Namespace,
) -> None:
    with pytest.raises(errors.Invalid, match=r"spec\.containers: Required value"):
        await namespace.api.create(resources.PODS, namespace.name, _pod(containers=[]))


async def test_a_taken_name_is_no_conflict(namespace: Namespace) -> None:
    await namespace.api.create(resources.PODS, namespace.name, _pod())
    with pytest.raises(errors.AlreadyExists, match='pods "plain" already exists'):
        await namespace.api.create(resources.PODS, namespace.name, _pod())


async def test_a_pod_is_deleted_only_if_it_is_the_one_that_was_seen(namespace: Namespace) -> None:
    created = await namespace.api.create(resources.PODS, namespace.name, _pod())
    with pytest.raises(errors.Conflict):
        await namespace.api.delete(resources.PODS, namespace.name, "plain", "another-uid")
    assert "plain" in await namespace.pods()
    uid = created["metadata"]["uid"]
    await namespace.api.delete(resources.PODS, namespace.name, "plain", uid)
    assert await namespace.pods() == {}
    with pytest.raises(errors.NotFound):
        await namespace.api.delete(resources.PODS, namespace.name, "plain", uid)


async def test_a_job_is_deleted_only_in_the_version_that_was_seen(namespace: Namespace) -> None:
    job = await namespace.create_job()
    metadata = job["metadata"]
    with pytest.raises(errors.Conflict):
        await namespace.api.delete(
            resources.JOBS, namespace.name, "digits", metadata["uid"], version="1"
        )
    await namespace.api.delete(
        resources.JOBS, namespace.name, "digits", metadata["uid"], metadata["resourceVersion"]
    )
    with pytest.raises(errors.NotFound):
        await namespace.job()


async def test_a_status_is_written_only_over_the_version_that_was_seen(
    namespace: Namespace,
) -> None:
    job = await namespace.create_job()
    path = resources.JOBS.path(namespace.name, "digits", "status")
    metadata = {"resourceVersion": job["metadata"]["resourceVersion"]}
    answer = await namespace.api.patch(path, {"metadata": metadata, "status": {"attempt": 1}})
    assert answer["status"] == {"attempt": 1}
    with pytest.raises(errors.Conflict):
        await namespace.api.patch(path, {"metadata": metadata, "status": {"attempt": 2}})
    metadata = {"resourceVersion": answer["metadata"]["resourceVersion"]}
    answer = await namespace.api.patch(path, {"metadata": metadata, "status": {"attempt": None}})
    assert answer["status"] == {}


async def test_progress_is_owned_apart_from_the_rest_of_the_status(namespace: Namespace) -> None:
    await namespace.create_job()
    path = resources.JOBS.path(namespace.name, "digits", "status")
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "digits"},
        "status": {"progress": {"step": 5, "metrics": {"loss": "0.5", "old": "1"}}},
    }
    manager = names.PROGRESS_FIELD_MANAGER
    await namespace.api.patch(path, {"status": {"attempt": 3}})
    await namespace.api.apply(path, manifest, manager)
    manifest["status"] = {"progress": {"step": 6, "metrics": {"loss": "0.4"}}}
    answer = await namespace.api.apply(path, manifest, manager)
    expected = {"attempt": 3, "progress": {"step": 6, "metrics": {"loss": "0.4"}}}
    assert answer["status"] == expected


async def test_a_watch_goes_on_from_the_list_and_selects_by_label(namespace: Namespace) -> None:
    selector = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
    await namespace.api.create(resources.PODS, namespace.name, _pod("before"))
    listing = await namespace.api.list(resources.PODS, namespace.name, selector)
    assert [item["metadata"]["name"] for item in listing.items] == ["before"]
    stranger = _pod("stranger")
    del stranger["metadata"]["labels"]
    await namespace.api.create(resources.PODS, namespace.name, stranger)
    await namespace.api.create(resources.PODS, namespace.name, _pod("after"))
    uid = (await namespace.pods())["after"]["metadata"]["uid"]
    await namespace.api.delete(resources.PODS, namespace.name, "after", uid)
    events = []
    async with asyncio.timeout(waiting.LIMIT_SECONDS):
        async for event in namespace.api.watch(
            resources.PODS, namespace.name, listing.version, selector
        ):
            events.append((event.type, event.object["metadata"]["name"]))
            if event.type == "DELETED":
                break
    assert {name for _, name in events} == {"after"}
    assert [kind for kind, _ in events if kind != "MODIFIED"] == ["ADDED", "DELETED"]


async def test_a_quota_is_a_refusal_for_now(namespace: Namespace) -> None:
    namespace.kubectl("create", "quota", "none", "--hard=pods=0")
    # The controller that would write this does not run here.
    path = resources.Resource("v1", "resourcequotas").path(namespace.name, "none", "status")
    await namespace.api.patch(path, {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    refusals: list[str] = []

    async def refused() -> bool:
        try:
            created = await namespace.api.create(resources.PODS, namespace.name, _pod())
        except errors.Refused as error:
            refusals.append(str(error))
            return True
        metadata = created["metadata"]
        await namespace.api.delete(
            resources.PODS, namespace.name, metadata["name"], metadata["uid"], force=True
        )
        return False

    # Admission hears of the quota a moment later than we.
    await waiting.until_async(refused, "the quota applies")
    assert "exceeded quota: none" in refusals[0]
