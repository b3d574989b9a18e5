"""The NetworkPolicy of a job on a real API server."""

import pathlib
import re
from typing import Any

import pytest
import yaml

from testing import waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import errors, resources

PAGE = pathlib.Path(__file__).parents[3] / "docs/operate/isolation.md"


def _blocks() -> list[Any]:
    """Return the YAML of the page: a policy's spec, and a job that has none."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return [yaml.safe_load(block) for block in blocks]


async def _policies(namespace: Namespace) -> list[dict[str, Any]]:
    return list((await namespace.api.list(resources.NETWORK_POLICIES, namespace.name)).items)


async def test_a_job_accepts_connections_of_its_pods_alone(namespace: Namespace) -> None:
    async with namespace.operator():
        job = await namespace.create_job(objects.job(workers=1))
        pods = await namespace.until_pods("digits-chief-0", "digits-worker-0")
        [policy] = await _policies(namespace)
        assert policy["metadata"]["name"] == "digits-tfparallel"
        [owner] = policy["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
        assert policy["spec"] == _blocks()[0]
        chosen = policy["spec"]["podSelector"]["matchLabels"]
        assert all(chosen.items() <= pod["metadata"]["labels"].items() for pod in pods.values())
        namespace.kubectl("delete", "networkpolicy", "digits-tfparallel")

        async def again() -> bool:
            return [p["metadata"]["uid"] for p in await _policies(namespace)] not in (
                [],
                [policy["metadata"]["uid"]],
            )

        await waiting.until_async(again, "a policy that somebody deleted is made again")


async def test_an_open_job_has_no_policy_and_the_choice_stays(namespace: Namespace) -> None:
    policy = _blocks()[1]
    name = policy["metadata"]["name"]
    async with namespace.operator():
        await namespace.create_job(policy)

        async def has_policy() -> bool:
            return bool(await namespace.pods())

        await waiting.until_async(has_policy, "the job has pods")
        assert await _policies(namespace) == []
    path = resources.JOBS.path(namespace.name, name)
    with pytest.raises(
        errors.Invalid, match="network and hostNetwork cannot change once the job exists"
    ):
        await namespace.api.patch(path, {"spec": {"network": "Isolated"}})
