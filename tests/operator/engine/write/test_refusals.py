"""Pods that a real API server refuses for now: the job waits, says why, and goes on."""

from typing import Any

import pytest

from testing import waiting
from testing.operator import harness, objects
from tfparallel_operator.api_server import client, errors, resources

QUOTAS = resources.Resource("v1", "resourcequotas")
PRIORITIES = resources.Resource("scheduling.k8s.io/v1", "priorityclasses")
POLICIES = resources.Resource("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
BINDINGS = resources.Resource(
    "admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings"
)


async def _refused(place: harness.Place, reason: str) -> dict[str, Any]:
    """Wait until the job says why its pods are refused."""
    condition = await place.until_refused(reason)
    assert (await place.status())["state"] == "Pending"
    return condition


async def test_a_quota_that_is_raised_lets_the_job_run(place: harness.Place) -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    await place.api.create(QUOTAS, place.namespace, quota)
    await _set_quota(place, 1)
    async with place.operator():
        await place.create_job(objects.job(workers=1))
        refused = await _refused(place, "QuotaExceeded")
        assert "exceeded quota: few" in refused["message"]
        assert len(await place.pods()) == 1
        await _set_quota(place, 10)
        await place.until_pods("digits-chief-0", "digits-worker-0")
        await place.until_let_through()


async def _set_quota(place: harness.Place, pods: int) -> None:
    """Set what the controller of quotas would."""
    path = QUOTAS.path(place.namespace, "few", "status")
    hard = {"hard": {"pods": str(pods)}, "used": {"pods": str(len(await place.pods()))}}
    await place.api.patch(QUOTAS.path(place.namespace, "few"), {"spec": {"hard": hard["hard"]}})
    await place.api.patch(path, {"status": hard})


async def test_a_missing_priority_class_is_waited_for(place: harness.Place) -> None:
    name = f"{place.namespace}-urgent"
    job = objects.job(workers=0)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = objects.template(priorityClassName=name)
    async with place.operator():
        await place.create_job(job)
        await _refused(place, "PriorityClassNotFound")
        await place.api.create(PRIORITIES, None, {"metadata": {"name": name}, "value": 5})
        [pod] = (await place.until_pods("digits-chief-0")).values()
        assert pod["spec"]["priority"] == 5
        await place.until_let_through()


@pytest.mark.parametrize("reason", ["Forbidden", "Invalid", "RequestEntityTooLarge"])
async def test_what_a_policy_denies_is_tried_again(place: harness.Place, reason: str) -> None:
    """A policy chooses the status of its denials."""
    await _deny_pods(place, reason)
    async with place.operator():
        await place.create_job(objects.job(workers=0))
        refused = await _refused(place, "AdmissionDenied")
        assert "no pods today" in refused["message"]
        place.kubectl("delete", "validatingadmissionpolicybinding", place.namespace)
        await place.until_pods("digits-chief-0")
        await place.until_let_through()


async def _deny_pods(place: harness.Place, reason: str) -> None:
    """Deny the pods of the test's namespace, and wait until that is in force."""
    await _create_policy(place.api, place.namespace, reason)
    probe = {"metadata": {"name": "probe"}, **objects.template()}

    async def denied() -> bool:
        try:
            created = await place.api.create(resources.PODS, place.namespace, probe)
        except errors.Refused:
            return True
        uid = created["metadata"]["uid"]
        await place.api.delete(resources.PODS, place.namespace, "probe", uid, force=True)
        return False

    await waiting.until_async(denied, "the policy is in force")


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
