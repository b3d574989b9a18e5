"""What keeps pods from being created, on a real API server: said on the job, and tried again."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from testing import waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import resources

WEBHOOKS = resources.Resource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")


@contextlib.asynccontextmanager
async def dead_webhook(namespace: Namespace, *more: str) -> AsyncIterator[None]:
    """Have the API server ask about pods of the namespace where nobody listens.

    Args:
        place: the namespace.
        more: operations besides CREATE.
    """
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", *more],
        "resources": ["pods"],
    }
    webhook = {
        "name": "pods.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/mutate"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail",
    }
    manifest = {"metadata": {"name": namespace.name}, "webhooks": [webhook]}
    created = await namespace.api.create(WEBHOOKS, None, manifest)
    try:
        await _until_failing(namespace)
        yield
    finally:
        path = WEBHOOKS.path(name=created["metadata"]["name"])
        with contextlib.suppress(Exception):
            await namespace.api.get(path)
            namespace.kubectl("delete", "mutatingwebhookconfiguration", namespace.name)


async def _until_failing(namespace: Namespace) -> None:
    """Wait until the webhook answers."""
    probe = {"metadata": {"name": "probe"}, **objects.template()}

    async def fails() -> bool:
        try:
            await namespace.api.check(resources.PODS, namespace.name, probe)
        except Exception as error:
            return "failed calling webhook" in str(error)
        return False

    await waiting.until_async(fails, "the webhook answers")


async def test_a_webhook_that_does_not_answer_is_said_and_tried_again(
    namespace: Namespace,
) -> None:
    async with dead_webhook(namespace), namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        refused = await namespace.until_refused("ServerUnavailable")
        assert 'failed calling webhook "pods.example.com"' in refused["message"]
        assert "pod/digits-chief-0" in refused["message"]
        status = await namespace.status()
        assert (status["attempt"], status["state"]) == (1, "Pending")
        assert status["startTime"]
        namespace.kubectl("delete", "mutatingwebhookconfiguration", namespace.name)
        await namespace.until_pods("digits-chief-0")
        await namespace.until_let_through()


async def test_a_restart_says_that_a_webhook_does_not_answer(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        await namespace.run_pods("digits-chief-0")
        async with dead_webhook(namespace):
            namespace.kubectl("delete", "pod", "digits-chief-0", "--grace-period=0", "--force")
            refused = await namespace.until_refused("ServerUnavailable")
            assert "failed calling webhook" in refused["message"]
            assert (await namespace.status())["state"] == "Restarting"
        await namespace.until_pods("digits-chief-0", attempt=2)
        await namespace.until_let_through()


async def test_a_deletion_that_a_webhook_does_not_answer_is_said(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        await namespace.run_pods("digits-chief-0")
        async with dead_webhook(namespace, "DELETE"):
            await namespace.end("digits-chief-0", 75)

            async def is_said() -> bool:
                events = namespace.kubectl("get", "events.events.k8s.io", "-o", "json")
                return any(
                    event["reason"] == "ReplicasPending" and "failed calling" in event["note"]
                    for event in json.loads(events)["items"]
                )

            await waiting.until_async(is_said, "an Event says why nothing is deleted")
        await namespace.until_pods("digits-chief-0", attempt=2)


def _asks(memory: str) -> dict[str, Any]:
    """Return a job of one pod that requests memory, and has no limit."""
    job = objects.job(workers=0)
    template = objects.template()
    template["spec"]["containers"][0]["resources"] = {"requests": {"memory": memory}}
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = template
    return job


async def _limit(namespace: Namespace, memory: str) -> None:
    """Have pods without a limit get this one."""
    manifest = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "defaults", "namespace": namespace.name},
        "spec": {"limits": [{"type": "Container", "default": {"memory": memory}}]},
    }
    namespace.kubectl("apply", "-f", "-", body=manifest)
    probe = {"metadata": {"name": "probe"}, **objects.template()}

    async def is_default() -> bool:
        pod = await namespace.api.check(resources.PODS, namespace.name, probe)
        [container] = pod["spec"]["containers"]
        return bool(container["resources"].get("limits", {}).get("memory") == memory)

    await waiting.until_async(is_default, f"the default limit is {memory}")


async def test_a_default_of_a_limit_range_is_waited_for(namespace: Namespace) -> None:
    await _limit(namespace, "512Mi")
    async with namespace.operator():
        await namespace.create_job(_asks("768Mi"))
        refused = await namespace.until_refused("DefaultsConflict")
        assert "LimitRange" in refused["message"]
        assert "memory limit of 512Mi" in refused["message"]
        assert (await namespace.status())["state"] == "Pending"
        await _limit(namespace, "1Gi")
        await namespace.until_pods("digits-chief-0")
        await namespace.until_let_through()


async def test_a_limit_range_does_not_end_a_job_that_trains(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(_asks("768Mi"))
        await namespace.run_pods("digits-chief-0")
        await _limit(namespace, "512Mi")
        namespace.kubectl("delete", "pod", "digits-chief-0", "--grace-period=0", "--force")
        await namespace.until_refused("DefaultsConflict")
        assert (await namespace.status())["state"] == "Restarting"
        await _limit(namespace, "1Gi")
        await namespace.until_pods("digits-chief-0", attempt=2)
        await namespace.until_let_through()


async def test_requests_above_its_own_limits_end_a_job(namespace: Namespace) -> None:
    job = _asks("768Mi")
    [container] = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"]
    container["resources"]["limits"] = {"memory": "512Mi"}
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Failed")
        assert (await namespace.condition("Failed"))["reason"] in ("InvalidSpec", "InvalidTemplate")


async def test_an_edit_of_the_spec_is_tried_at_once(namespace: Namespace) -> None:
    await _limit(namespace, "512Mi")
    async with namespace.operator():
        await namespace.create_job(_asks("768Mi"))
        await namespace.until_refused("DefaultsConflict")
        roles = _asks("256Mi")["spec"]["tfReplicaSpecs"]
        namespace.change({"tfReplicaSpecs": roles})
        await namespace.until_pods("digits-chief-0")
