"""A real etcd that is restored from an older copy while the operator runs."""

import asyncio
import pathlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from testing import waiting
from testing.cluster import handle, lifecycle, settings
from testing.operator import namespaces, objects, outage
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

WRITES = 100
"""Writes to etcd that the restore undoes, in addition to those of the jobs."""


@pytest.fixture
def own_cluster(cluster_programs: None, tmp_path: pathlib.Path) -> Iterator[handle.Cluster]:
    """A cluster whose etcd no other test uses."""
    folder = tmp_path / "cluster"
    yield lifecycle.up("restored", settings.Light(jobs=True), folder)
    lifecycle.down("restored", folder)


@pytest.fixture
async def own_place(own_cluster: handle.Cluster) -> AsyncIterator[Namespace]:
    async with namespaces.open_in(own_cluster) as namespace:
        yield namespace


async def _pods(namespace: Namespace, job: str = "digits") -> dict[str, dict[str, Any]]:
    pods = await namespace.pods()
    return {name: pod for name, pod in pods.items() if name.startswith(f"{job}-")}


async def _uids(namespace: Namespace) -> set[str]:
    return {pod["metadata"]["uid"] for pod in (await _pods(namespace)).values()}


async def _until_runs(namespace: Namespace, attempt: int) -> None:
    async def has_all() -> bool:
        pods = (await _pods(namespace)).values()
        attempts = [pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in pods]
        return attempts == [str(attempt)] * 3

    await waiting.until_async(has_all, f"the pods of attempt {attempt}")
    await namespace.run_all()
    await namespace.until_status(
        f"attempt {attempt} runs",
        lambda now: (now.get("attempt"), now.get("state")) == (attempt, "Running"),
    )


async def _until_served(namespace: Namespace, job: str) -> None:
    await namespace.create_job(objects.job(job, workers=0))
    await namespace.until_status(f"job {job} has a status", bool, job)
    assert list(await _pods(namespace, job)) == [f"{job}-chief-0"]


async def test_the_operator_goes_on_from_what_a_restored_etcd_holds(
    own_place: Namespace, tmp_path: pathlib.Path
) -> None:
    namespace, copy = own_place, tmp_path / "copy"
    async with namespace.operator():
        await namespace.create_job()
        await _until_runs(namespace, attempt=1)
        await asyncio.to_thread(outage.back_up, namespace.cluster, copy)
        saved = await _uids(namespace)
        await namespace.end("digits-worker-0", 1)
        await _until_runs(namespace, attempt=2)
        await _until_served(namespace, "lost")
        path = resources.CONFIG_MAPS.path(namespace.name, "many")
        await namespace.api.create(
            resources.CONFIG_MAPS, namespace.name, {"metadata": {"name": "many"}}
        )
        for number in range(WRITES):
            await namespace.api.patch(path, {"data": {"number": str(number)}})
        await asyncio.to_thread(outage.restore, namespace.cluster, copy)
        await _until_served(namespace, "new")
        assert await _uids(namespace) == saved, "nothing was done to pods that the copy holds"
        assert (await namespace.status())["attempt"] == 1
        await namespace.end("digits-worker-1", 1)
        await _until_runs(namespace, attempt=2)
        assert (await namespace.status())["restarts"] == {"failure": 1, "disruption": 0}
        assert "lost" not in {job["metadata"]["name"] for job in await _jobs(namespace)}
        await namespace.end("digits-chief-0", 0)
        await namespace.until_state("Succeeded")


async def _jobs(namespace: Namespace) -> tuple[dict[str, Any], ...]:
    return (await namespace.api.list(resources.JOBS, namespace.name)).items
