"""Pods whose label `app.kubernetes.io/managed-by` somebody changes, on a real API server."""

from typing import Any

import pytest

from testing import waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.engine.observe import hidden

POD = "digits-worker-0"
ALL = ("digits-chief-0", POD)


async def _event(namespace: Namespace) -> str:
    """The note of the Event that names the pod and its label."""
    events = (await namespace.api.list(resources.EVENTS, namespace.name)).items
    notes = (str(event["note"]) for event in events if names.LABEL_MANAGED_BY in event["note"])
    return next(notes, "")


def _label(namespace: Namespace, value: str) -> None:
    namespace.kubectl("label", "pod", POD, f"{names.LABEL_MANAGED_BY}={value}", "--overwrite")


@pytest.mark.parametrize("ends", ["labelled", "unlabelled", "deleted"])
async def test_a_pod_that_loses_its_label_still_counts_and_is_named(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(hidden, "SECONDS", 0.2)
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=1))
        pods = await namespace.run_pods(*ALL)
        _label(namespace, "somebody")
        assert f"pod/{POD}" in await waiting.until_async(lambda: _event(namespace), "it is named")
        status = await namespace.status()
        assert (status["state"], status["attempt"]) == ("Running", 1)
        if ends == "labelled":
            _label(namespace, names.MANAGED_BY)
        if ends == "deleted":
            uid = pods[POD]["metadata"]["uid"]
            await namespace.api.delete(resources.PODS, namespace.name, POD, uid, force=True)
        else:
            await namespace.end(POD, 1)
        status = await namespace.until_status("the loss is seen", lambda now: now["attempt"] == 2)
        counted = "disruption" if ends == "deleted" else "failure"
        assert status["restarts"][counted] == 1


POLICY: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicy",
    "spec": {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }
            ]
        },
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": "[JSONPatch{op: 'replace', path: '/metadata/labels/"
                    "app.kubernetes.io~1managed-by', value: 'policy'}]"
                },
            }
        ],
    },
}


async def test_a_policy_that_changes_the_label_is_named_until_it_does_not(
    namespace: Namespace,
) -> None:
    name = f"relabel-{namespace.name}"
    binding = {
        "apiVersion": POLICY["apiVersion"],
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "matchResources": {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": namespace.name}
                }
            },
        },
    }
    namespace.kubectl("create", "-f", "-", body={**POLICY, "metadata": {"name": name}})
    namespace.kubectl("create", "-f", "-", body=binding)

    async def changes_labels() -> bool:
        """A policy takes effect some time after its creation."""
        metadata = {"name": "probe", "labels": {names.LABEL_MANAGED_BY: "x"}}
        pod = {"metadata": metadata, **objects.template()}
        answer = await namespace.api.check(resources.PODS, namespace.name, pod)
        return bool(answer["metadata"]["labels"][names.LABEL_MANAGED_BY] == "policy")

    try:
        await waiting.until_async(changes_labels, "the policy acts")
        async with namespace.operator():
            await namespace.create_job(objects.job(workers=1))
            refused = await namespace.until_refused("NameConflict")
            assert names.LABEL_MANAGED_BY in refused["message"]
            assert "pod/digits-chief-0" in refused["message"]
    finally:
        namespace.kubectl("delete", "mutatingadmissionpolicybinding", name)
        namespace.kubectl("delete", "mutatingadmissionpolicy", name)
