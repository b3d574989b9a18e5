"""Pods that a real API server refuses for now: the job waits, says why, and continues."""

from typing import Any

import pytest

from testing import waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import client, errors, resources

QUOTAS = resources.Resource("v1", "resourcequotas")
PRIORITIES = resources.Resource("scheduling.k8s.io/v1", "priorityclasses")
POLICIES = resources.Resource("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
BINDINGS = resources.Resource(
    "admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"
)


async def _refused(namespace: Namespace, reason: str) -> dict[str, Any]:
    """Wait until the job says why its pods are refused."""
    condition = await namespace.until_refused(reason)
    assert (await namespace.status())["state"] == "Pending"
    return condition


async def test_a_quota_that_is_raised_lets_the_job_run(namespace: Namespace) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    await namespace.api.create(QUOTAS, namespace.name, quota)
    await _set_quota(namespace, 1)
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=1))
        refused = await _refused(namespace, "QuotaExceeded")
        assert "exceeded quota: few" in refused["message"]
        assert len(await namespace.pods()) == 1
        await _set_quota(namespace, 10)
        await namespace.until_pods("digits-chief-0", "digits-worker-0")
        await namespace.until_let_through()


async def _set_quota(namespace: Namespace, pods: int) -> None:
    """Set what the controller of quotas would."""
    path = QUOTAS.path(namespace.name, "few", "status")
    hard = {"hard": {"pods": str(pods)}, "used": {"pods": str(len(await namespace.pods()))}}
    await namespace.api.patch(QUOTAS.path(namespace.name, "few"), {"spec": {"hard": hard["hard"]}})
    await namespace.api.patch(path, {"status": hard})


async def test_a_missing_priority_class_is_waited_for(namespace: Namespace) -> None:
    name = f"{namespace.name}-urgent"
    job = objects.job(workers=0)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = objects.template(priorityClassName=name)
    async with namespace.operator():
        await namespace.create_job(job)
        await _refused(namespace, "PriorityClassNotFound")
        await namespace.api.create(PRIORITIES, None, {"metadata": {"name": name}, "value": 5})
        [pod] = (await namespace.until_pods("digits-chief-0")).values()
        assert pod["spec"]["priority"] == 5
        await namespace.until_let_through()


@pytest.mark.parametrize("reason", ["Forbidden", "Invalid", "RequestEntityTooLarge"])
async def test_what_a_policy_denies_is_tried_again(namespace: Namespace, reason: str) -> None:
    """A policy chooses the status of its denials."""
    await _deny_pods(namespace, reason)
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        refused = await _refused(namespace, "AdmissionDenied")
        assert "no pods today" in refused["message"]
        namespace.kubectl("delete", "validatingadmissionpolicybinding", namespace.name)
        await namespace.until_pods("digits-chief-0")
        await namespace.until_let_through()


async def _deny_pods(namespace: Namespace, reason: str) -> None:
    """Deny the pods of the test's namespace, and wait until it applies."""
    await _create_policy(namespace.api, namespace.name, reason)
    probe = {"metadata": {"name": "probe"}, **objects.template()}

    async def denied() -> bool:
        try:
            created = await namespace.api.create(resources.PODS, namespace.name, probe)
        except errors.Refused:
            return True
        uid = created["metadata"]["uid"]
        await namespace.api.delete(resources.PODS, namespace.name, "probe", uid, force=True)
        return False

    await waiting.until_async(denied, "the policy applies")


async def _create_policy(api: client.Client, namespace: str, reason: str) -> None:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    validation = {"expression": "false", "message": "no pods today", "reason": reason}
    policy = {
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
            "validations": [validation],
        },
    }
    await api.create(POLICIES, None, policy)
    binding = {"policyName": namespace, "validationActions": ["Deny"]}
    await api.create(BINDINGS, None, {"metadata": {"name": namespace}, "spec": binding})
