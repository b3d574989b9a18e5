"""Two installations of the operator, as two processes, over one namespace."""

import asyncio
import pathlib
from typing import Any

import pytest

from testing import waiting
from testing.operator import harness, operator_process, progress_site
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.local import ports

ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")
MOST_WRITES = 12
"""Of the ConfigMap, for all of the test: one question with its answer, and few more."""


def _environment(place: harness.Place, number: int, port: int) -> dict[str, str]:
    return {
        "KUBECONFIG": str(place.cluster.kubeconfig),
        "TFPARALLEL_WATCH_NAMESPACES": place.namespace,
        "POD_NAMESPACE": place.namespace,
        "POD_NAME": f"operator-{number}",
        "TFPARALLEL_LEASE": f"release-{number}",
        "TFPARALLEL_LEASE_SECONDS": "600",
        "TFPARALLEL_TLS_SECRET": f"release-{number}-tls",
        "TFPARALLEL_PROGRESS_HOST": progress_site.HOST,
        "TFPARALLEL_PROGRESS_PORT": str(port),
    }


class Writes:
    """Counts the writes of the job's ConfigMap."""

    def __init__(self, place: harness.Place) -> None:
        self._place = place
        self.installations: list[str] = []

    async def follow(self, version: str) -> None:
        watch = self._place.api.watch(resources.CONFIG_MAPS, self._place.namespace, version)
        async for event in watch:
            metadata = event.object["metadata"]
            if metadata["name"] == "digits-tfparallel":
                annotations = metadata["annotations"]
                self.installations.append(annotations[names.ANNOTATION_INSTALLATION])


async def _notices(place: harness.Place) -> list[dict[str, Any]]:
    events = (await place.api.list(resources.EVENTS, place.namespace)).items
    return [event for event in events if event["reason"] == names.Reason.OTHER_INSTALLATION]


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
async def test_one_of_two_installations_acts_and_the_other_says_so(
    place: harness.Place, tmp_path: pathlib.Path, ended: bool
) -> None:
    listening = ports.allocate(2)
    first, second = (_environment(place, n, port) for n, port in enumerate(listening))
    version = (await place.api.list(resources.CONFIG_MAPS, place.namespace)).version
    writes = Writes(place)
    following = asyncio.create_task(writes.follow(version))
    async with operator_process.running(first, tmp_path / "0.log") as acting:
        await acting.until_ready()
        await place.create_job()
        await place.until_pods(*ALL)
        await place.run_all()
        await place.until_state("Running")
        if ended:
            await place.end("digits-chief-0", 0)
            await place.until_state("Succeeded")
        async with operator_process.running(second, tmp_path / "1.log") as other:
            await other.until_ready()
            notices = await waiting.until_async(
                lambda: _notices(place), "the other installation says so", when=bool
            )
            contested = await waiting.until_async(
                lambda: place.condition("Contested"), "who acts says so, too", when=bool
            )
            if not ended:
                await place.end("digits-worker-0", 1)
                await place.until_pods(*ALL, attempt=2)
                await place.run_all()
                await place.until_state("Running")
                await place.end("digits-chief-0", 0)
                await place.until_state("Succeeded")
            assert f"{place.namespace}/release-0" in other.log
    following.cancel()
    assert {*writes.installations} == {f"{place.namespace}/release-0"}
    assert len(writes.installations) <= MOST_WRITES
    assert f"installation {place.namespace}/release-1 of the operator" in contested["message"]
    [notice] = notices
    assert f"installation {place.namespace}/release-0 of the operator acts" in notice["note"]
