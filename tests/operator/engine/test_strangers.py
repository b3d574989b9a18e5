"""Objects that other people make to look like a job's children, on a real API server."""

import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from testing.operator import namespaces, objects, progress_site
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.pods import config

FINALIZER = "example.com/stays"
"""Keeps a pod whose owner is not in its namespace from the garbage collector."""

ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")


@pytest.fixture
async def other(namespace: Namespace) -> AsyncIterator[Namespace]:
    """A namespace of another tenant, who sees the jobs of the first."""
    other = Namespace(namespace.api, namespace.cluster, namespaces.fresh_name())
    await other.create_namespace()
    yield other
    await _let_go(other)


async def _let_go(namespace: Namespace) -> None:
    """Let the pods of strangers be deleted."""
    for name in await namespace.pods():
        path = resources.PODS.path(namespace.name, name)
        await namespace.api.patch(path, {"metadata": {"finalizers": None}})


async def _add_false_chief(namespace: Namespace, job: dict[str, Any], name: str) -> None:
    """Create a pod that says that it is the chief of a job, with the rights of a tenant."""
    pod = {"apiVersion": "v1", "kind": "Pod", **objects.template()}
    pod["metadata"] = {
        "name": name,
        "labels": {**objects.labels("chief"), names.LABEL_JOB: job["metadata"]["name"]},
        "ownerReferences": [objects.owner(uid=job["metadata"]["uid"])],
        "finalizers": [FINALIZER],
    }
    await namespace.api.create(resources.PODS, namespace.name, pod)


@contextlib.asynccontextmanager
async def _running_job(
    namespace: Namespace, *more_namespaces: str, **settings: Any
) -> AsyncIterator[dict[str, Any]]:
    watched = (namespace.name, *more_namespaces)
    async with namespace.operator(watch_namespaces=watched, **settings):
        job = await namespace.create_job()
        await namespace.run_pods(*ALL)
        yield job


async def _see_that_it_trains(namespace: Namespace) -> None:
    """A replica that is lost leads to another attempt, which a job that has ended never has."""
    await namespace.end("digits-worker-0", 1)

    def is_restarted(status: dict[str, Any]) -> bool:
        return bool(status["attempt"] == 2 or status["state"] == "Succeeded")

    status = await namespace.until_status("the job continues", is_restarted)
    assert status["attempt"] == 2, status["conditions"]


async def test_a_pod_of_another_namespace_with_the_jobs_uid_does_not_end_it(
    namespace: Namespace, other: Namespace
) -> None:
    async with _running_job(namespace, other.name) as job:
        await _add_false_chief(other, job, "digits-chief-0")
        await other.end("digits-chief-0", 0)
        await _see_that_it_trains(namespace)


async def test_a_pod_of_another_name_does_not_end_the_job(namespace: Namespace) -> None:
    async with _running_job(namespace) as job:
        await _add_false_chief(namespace, job, "digits-chief-1")
        await namespace.end("digits-chief-1", 0)
        await _see_that_it_trains(namespace)
        path = resources.PODS.path(namespace.name, "digits-chief-1")
        await namespace.api.patch(path, {"metadata": {"finalizers": None}})


async def test_a_token_of_a_pod_of_another_namespace_reports_nothing(
    namespace: Namespace, other: Namespace
) -> None:
    [port] = ports.allocate(1)
    progress = {"progress_host": progress_site.HOST, "progress_port": port}
    async with _running_job(namespace, other.name, **progress) as job:
        await _add_false_chief(other, job, "digits-chief-0")
        path = resources.CONFIG_MAPS.path(namespace.name, config.name("digits"))
        authorities = (await namespace.api.get(path))["data"][config.CA_FILE_KEY]
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authorities))
        async with aiohttp.ClientSession(connector=connector) as http:
            strange = progress_site.Site(other, port, http)
            site = progress_site.Site(namespace, port, http)
            audience = await site.audience()
            token = await strange.token("digits-chief-0", audience)
            answer = await site.send(token, {"step": 7, "totalSteps": 7})
            assert answer[0] == 401
            true_token = await site.token("digits-chief-0", audience)
            assert await site.send(true_token, {"step": 40, "totalSteps": 100}) == (202, "")
        await namespace.until_status(
            "the true report is shown", lambda now: now.get("progress", {}).get("step") == 40
        )
