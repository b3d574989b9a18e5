"""One job of a thousand workers on a real API server: what is stored, and what the status holds."""

import asyncio
import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from testing.operator import namespaces
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import resources

pytestmark = [pytest.mark.timeout(600)]

PAGE = pathlib.Path(__file__).parents[3] / "docs/operate/large-jobs.md"
LIMIT_SECONDS = 240.0
"""Over a thousand pods are created and started; with a quiet machine this takes seconds."""

AT_ONCE = 16


def _example() -> dict[str, Any]:
    """Return the job of the page."""
    [first, *_] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    job: dict[str, Any] = yaml.safe_load(first)
    return job


def _all_seen(status: namespaces.Body) -> bool:
    counts = {role: counts.get("seen") for role, counts in status.get("replicas", {}).items()}
    return counts == {"Chief": "0", "Worker": "0-999", "PS": "0-9"}


async def _start(namespace: Namespace, names: Iterable[str]) -> None:
    """Start many pods as their kubelets do."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with slots:
            await namespace.kubelet(name, "Running", running={})

    await asyncio.gather(*map(one, names))


def _bytes(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":")))


def _shows_the_task_alone(pod: dict[str, Any]) -> bool:
    [container] = pod["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    return (
        set(json.loads(variables["TF_CONFIG"])) == {"task"}
        and variables["TFPARALLEL_WORKERS"] == "1000"
    )


async def test_a_thousand_workers_are_stored_in_bounded_pieces(namespace: Namespace) -> None:
    job = _example()
    # What the end of so many pods takes is not asked here.
    job["spec"]["runPolicy"] = {"cleanPodPolicy": "None"}
    name = job["metadata"]["name"]
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_status("every pod has been created", _all_seen, name, LIMIT_SECONDS)
        pods = await namespace.pods()
        assert len(pods) == 1011
        assert all(map(_shows_the_task_alone, pods.values()))
        # The server's own record of who wrote what grows with the pod, not with the job.
        sizes = [_bytes({**pod, "metadata": {}}) for pod in pods.values()]
        assert max(sizes) < 5_000
        path = resources.CONFIG_MAPS.path(namespace.name, f"{name}-tfparallel")
        cluster = (await namespace.api.get(path))["data"]["cluster.json"]
        assert {role: len(of) for role, of in json.loads(cluster).items()} == {
            "chief": 1,
            "worker": 1000,
            "ps": 10,
        }
        assert len(cluster) < 64_000
        await _start(namespace, pods)
        await namespace.until_status(
            "every pod runs",
            lambda now: (now["state"], now["ready"]) == ("Running", "1011/1011"),
            name,
            LIMIT_SECONDS,
        )
        for index in (0, 1, 500):
            await namespace.end(f"{name}-worker-{index}", 0)
        await namespace.end(f"{name}-chief-0", 0)
        status = await namespace.until_status(
            "the end is recorded", lambda now: now.get("state") == "Succeeded", name, LIMIT_SECONDS
        )
        assert status["replicas"]["Worker"]["completed"] == "0-1,500"
        assert _bytes(status) < 4_000
