"""Two installations of the operator, as two processes, over one namespace."""

import asyncio
import pathlib
from typing import Any

import pytest

from testing import waiting
from testing.operator import operator_process, progress_site
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")
MOST_WRITES = 12
"""Of the ConfigMap, for all of the test: one question with its answer, and few more."""


def _environment(namespace: Namespace, number: int, port: int) -> dict[str, str]:
    return {
        **namespace.variables,
        "POD_NAME": f"operator-{number}",
        "TFPARALLEL_LEASE": f"release-{number}",
        "TFPARALLEL_LEASE_SECONDS": "600",
        "TFPARALLEL_TLS_SECRET": f"release-{number}-tls",
        "TFPARALLEL_PROGRESS_HOST": progress_site.HOST,
        "TFPARALLEL_PROGRESS_PORT": str(port),
    }


class Writes:
    """Counts the writes of the job's ConfigMap."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.installations: list[str] = []

    async def follow(self, version: str) -> None:
        watch = self._namespace.api.watch(resources.CONFIG_MAPS, self._namespace.name, version)
        async for event in watch:
            metadata = event.object["metadata"]
            if metadata["name"] == "digits-tfparallel":
                annotations = metadata["annotations"]
                self.installations.append(annotations[names.ANNOTATION_INSTALLATION])


async def _notices(namespace: Namespace) -> list[dict[str, Any]]:
    events = (await namespace.api.list(resources.EVENTS, namespace.name)).items
    return [event for event in events if event["reason"] == names.Reason.OTHER_INSTALLATION]


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
async def test_one_of_two_installations_acts_and_the_other_says_so(
    namespace: Namespace, tmp_path: pathlib.Path, ended: bool
) -> None:
    listening = ports.allocate(2)
    first, second = (_environment(namespace, n, port) for n, port in enumerate(listening))
    version = (await namespace.api.list(resources.CONFIG_MAPS, namespace.name)).version
    writes = Writes(namespace)
    following = asyncio.create_task(writes.follow(version))
    async with operator_process.running(first, tmp_path / "0.log") as acting:
        await acting.until_ready()
        await namespace.create_job()
        await namespace.run_pods(*ALL)
        if ended:
            await namespace.end("digits-chief-0", 0)
            await namespace.until_state("Succeeded")
        async with operator_process.running(second, tmp_path / "1.log") as other:
            await other.until_ready()
            notices = await waiting.until_async(
                lambda: _notices(namespace), "the other installation says so", when=bool
            )
            contested = await waiting.until_async(
                lambda: namespace.condition("Contested"), "who acts says so, too", when=bool
            )
            if not ended:
                await namespace.end("digits-worker-0", 1)
                await namespace.run_pods(*ALL, attempt=2)
                await namespace.end("digits-chief-0", 0)
                await namespace.until_state("Succeeded")
            assert f"{namespace.name}/release-0" in other.log
    following.cancel()
    assert {*writes.installations} == {f"{namespace.name}/release-0"}
    assert len(writes.installations) <= MOST_WRITES
    assert f"installation {namespace.name}/release-1 of the operator" in contested["message"]
    [notice] = notices
    assert f"installation {namespace.name}/release-0 of the operator acts" in notice["note"]
