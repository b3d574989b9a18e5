"""Objects that other people make to look like a job's children, on a real API server."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from testing.operator import harness, objects, places, progress_site
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.pods import config
from tfparallel_operator.local import ports

FINALIZER = "example.com/stays"
"""Keeps a pod whose owner is not in its namespace from the garbage collector."""

ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")


@pytest.fixture
async def other(place: harness.Place) -> AsyncIterator[harness.Place]:
    """A namespace of another tenant, who sees the jobs of the first."""
    other = harness.Place(place.api, place.cluster, places.fresh_name())
    await other.create_namespace()
    yield other
    await _let_go(other)


async def _let_go(place: harness.Place) -> None:
    """Let the pods of strangers be deleted."""
    for name in await place.pods():
        path = resources.PODS.path(place.namespace, name)
        await place.api.patch(path, {"metadata": {"finalizers": None}})


async def _add_false_chief(place: harness.Place, job: dict[str, Any], name: str) -> None:
    """Create a pod that says that it is the chief of a job, with the rights of a tenant."""
    pod = {"apiVersion": "v1", "kind": "Pod", **objects.template()}
    pod["metadata"] = {
        "name": name,
        "labels": {**objects.labels("chief"), names.LABEL_JOB: job["metadata"]["name"]},
        "ownerReferences": [objects.owner(uid=job["metadata"]["uid"])],
        "finalizers": [FINALIZER],
    }
    await place.api.create(resources.PODS, place.namespace, pod)


@contextlib.asynccontextmanager
async def _running_job(
    place: harness.Place, *more_namespaces: str, **settings: Any
) -> AsyncIterator[dict[str, Any]]:
    namespaces = (place.namespace, *more_namespaces)
    async with place.operator(watch_namespaces=namespaces, **settings):
        job = await place.create_job()
        await place.until_pods(*ALL)
        await place.run_all()
        await place.until_state("Running")
        yield job


async def _see_that_it_trains(place: harness.Place) -> None:
    """A replica that is lost leads to another attempt, which a job that has ended never has."""
    await place.end("digits-worker-0", 1)

    def is_restarted(status: dict[str, Any]) -> bool:
        return bool(status["attempt"] == 2 or status["state"] == "Succeeded")

    status = await place.until_status("the job goes on", is_restarted)
    assert status["attempt"] == 2, status["conditions"]


async def test_a_pod_of_another_namespace_with_the_jobs_uid_does_not_end_it(
    place: harness.Place, other: harness.Place
) -> None:
    async with _running_job(place, other.namespace) as job:
        await _add_false_chief(other, job, "digits-chief-0")
        await other.end("digits-chief-0", 0)
        await _see_that_it_trains(place)


async def test_a_pod_of_another_name_does_not_end_the_job(place: harness.Place) -> None:
    async with _running_job(place) as job:
        await _add_false_chief(place, job, "digits-chief-1")
        await place.end("digits-chief-1", 0)
        await _see_that_it_trains(place)
        path = resources.PODS.path(place.namespace, "digits-chief-1")
        await place.api.patch(path, {"metadata": {"finalizers": None}})


async def test_a_token_of_a_pod_of_another_namespace_reports_nothing(
    place: harness.Place, other: harness.Place
) -> None:
    [port] = ports.allocate(1)
    progress = {"progress_host": progress_site.HOST, "progress_port": port}
    async with _running_job(place, other.namespace, **progress) as job:
        await _add_false_chief(other, job, "digits-chief-0")
        path = resources.CONFIG_MAPS.path(place.namespace, config.name("digits"))
        authorities = (await place.api.get(path))["data"][config.CA_FILE_KEY]
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authorities))
        async with aiohttp.ClientSession(connector=connector) as http:
            strange = progress_site.Site(other, port, http)
            site = progress_site.Site(place, port, http)
            audience = await site.audience()
            token = await strange.token("digits-chief-0", audience)
            answer = await site.send(token, {"step": 7, "totalSteps": 7})
            assert answer[0] == 401
            true_token = await site.token("digits-chief-0", audience)
            assert await site.send(true_token, {"step": 40, "totalSteps": 100}) == (202, "")
        await place.until_status(
            "the true report is shown", lambda now: now.get("progress", {}).get("step") == 40
        )
