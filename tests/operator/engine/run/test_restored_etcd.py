"""A real etcd that is restored from an older copy while the operator runs."""

import asyncio
import pathlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from testing import waiting
from testing.cluster import handle, lifecycle, settings
from testing.operator import harness, objects, outage, places
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
async def own_place(own_cluster: handle.Cluster) -> AsyncIterator[harness.Place]:
    async with places.on(own_cluster) as place:
        yield place


async def _pods(place: harness.Place, job: str = "digits") -> dict[str, dict[str, Any]]:
    pods = await place.pods()
    return {name: pod for name, pod in pods.items() if name.startswith(f"{job}-")}


async def _uids(place: harness.Place) -> set[str]:
    return {pod["metadata"]["uid"] for pod in (await _pods(place)).values()}


async def _until_runs(place: harness.Place, attempt: int) -> None:
    async def has_all() -> bool:
        pods = (await _pods(place)).values()
        attempts = [pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in pods]
        return attempts == [str(attempt)] * 3

    await waiting.until_async(has_all, f"the pods of attempt {attempt}")
    await place.run_all()
    await place.until_status(
        f"attempt {attempt} runs",
        lambda now: (now.get("attempt"), now.get("state")) == (attempt, "Running"),
    )


async def _until_served(place: harness.Place, job: str) -> None:
    await place.create_job(objects.job(job, workers=0))
    await place.until_status(f"job {job} has a status", bool, job)
    assert list(await _pods(place, job)) == [f"{job}-chief-0"]


async def test_the_operator_goes_on_from_what_a_restored_etcd_holds(
    own_place: harness.Place, tmp_path: pathlib.Path
) -> None:
    place, copy = own_place, tmp_path / "copy"
    async with place.operator():
        await place.create_job()
        await _until_runs(place, attempt=1)
        await asyncio.to_thread(outage.back_up, place.cluster, copy)
        saved = await _uids(place)
        await place.end("digits-worker-0", 1)
        await _until_runs(place, attempt=2)
        await _until_served(place, "lost")
        path = resources.CONFIG_MAPS.path(place.namespace, "many")
        await place.api.create(
            resources.CONFIG_MAPS, place.namespace, {"metadata": {"name": "many"}}
        )
        for number in range(WRITES):
            await place.api.patch(path, {"data": {"number": str(number)}})
        await asyncio.to_thread(outage.restore, place.cluster, copy)
        await _until_served(place, "new")
        assert await _uids(place) == saved, "nothing was done to pods that the copy holds"
        assert (await place.status())["attempt"] == 1
        await place.end("digits-worker-1", 1)
        await _until_runs(place, attempt=2)
        assert (await place.status())["restarts"] == {"failure": 1, "disruption": 0}
        assert "lost" not in {job["metadata"]["name"] for job in await _jobs(place)}
        await place.end("digits-chief-0", 0)
        await place.until_state("Succeeded")


async def _jobs(place: harness.Place) -> tuple[dict[str, Any], ...]:
    return (await place.api.list(resources.JOBS, place.namespace)).items
