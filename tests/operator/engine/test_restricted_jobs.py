"""What an installation restricts, on a real API server."""

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest

from testing import waiting
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.core import installation
from tfparallel_operator.core.life import admission
from tfparallel_operator.core.pods import restrictions
from tfparallel_operator.engine.observe import permissions

REFUSED = names.ConditionType.CREATION_REFUSED
LABELS = {"tfparallel.dev/use": "jobs"}
SECRETS_ONLY = installation.Restrictions(secret_labels=LABELS)
_NAMING = ("LocalObjectReference", "SecretReference", "SecretKeySelector", "SecretEnvSource")
_SECRET_NAMES = ("secretName",)


def _job(**pod_spec: Any) -> namespaces.Body:
    role = {"replicas": 1, "template": objects.template(**pod_spec)}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "digits"},
        "spec": {"tfReplicaSpecs": {"Worker": role}},
    }


async def _until_restricted(namespace: Namespace, sentence: str) -> None:
    def is_refused(condition: namespaces.Body) -> bool:
        return condition.get("reason") == names.Reason.JOB_RESTRICTED

    condition = await waiting.until_async(
        lambda: namespace.condition(REFUSED), "the job is restricted", when=is_refused
    )
    assert sentence in condition["message"]


async def test_a_job_waits_for_the_label_of_its_secret(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the Secret is missing or lacks the label, the job learns the same."""
    monkeypatch.setattr(permissions, "LABELS_SECONDS", 0.5)
    monkeypatch.setattr(admission, "LOOK_FOR_PERMISSION", datetime.timedelta(seconds=1))
    volume = {"name": "keys", "secret": {"secretName": "hub"}}
    path = "spec.tfReplicaSpecs.Worker.template.spec.volumes[0].secret.secretName"
    async with namespace.operator(restrictions=SECRETS_ONLY):
        await namespace.create_job(_job(volumes=[volume]))
        await _until_restricted(namespace, f"{path} names the Secret 'hub'")
        namespace.kubectl("create", "secret", "generic", "hub", "--from-literal=token=x")
        assert await namespace.pods() == {}
        namespace.kubectl("label", "secret", "hub", "tfparallel.dev/use=jobs")
        await namespace.until_pods("digits-worker-0")
        await waiting.until_async(
            lambda: namespace.condition(REFUSED),
            "the job is restricted no longer",
            when=lambda condition: condition.get("status") != "True",
        )


async def test_a_running_job_goes_on_and_gets_no_new_attempt(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(_job(hostPID=True))
        await namespace.run_pods("digits-worker-0")
    forbidden = installation.Restrictions(host_access=installation.HostAccess.FORBIDDEN)
    async with namespace.operator(restrictions=forbidden):
        # The new operator has looked at the job when it has taken its end.
        assert (await namespace.status())["state"] == "Running"
        await namespace.end("digits-worker-0", 1)
        await _until_restricted(namespace, "spec.hostPID is hostPID, and jobs may not reach into")
        assert await namespace.pods() == {}
        assert (await namespace.status())["attempt"] == 2


async def test_service_accounts_and_nodes_are_restricted(namespace: Namespace) -> None:
    limits = installation.Restrictions(("trainer",), installation.HostAccess.FORBIDDEN)
    async with namespace.operator(restrictions=limits):
        await namespace.create_job(_job())
        await _until_restricted(
            namespace, "serviceAccountName is 'default', and jobs may have trainer"
        )
        assert await namespace.pods() == {}


async def test_no_way_of_the_api_server_to_name_a_secret_is_overlooked(
    namespace: Namespace,
) -> None:
    """Each field of a pod, by the API server's own schema, that leads to the name of a Secret."""
    document = json.loads(namespace.cluster.run_kubectl("get", "--raw", "/openapi/v3/api/v1"))
    schemas = document["components"]["schemas"]
    paths = [*_secret_paths(schemas, "io.k8s.api.core.v1.PodSpec", ())]
    assert len(paths) > 15
    for path in paths:
        pod_spec: Any = "hidden"
        for field in reversed(path):
            pod_spec = [pod_spec] if field == "[]" else {field: pod_spec}
        uses = restrictions.visit_pod(pod_spec, "spec")
        assert [use.value for use in uses] == ["hidden"], path


Path = tuple[str, ...]


def _secret_paths(schemas: Any, name: str, above: Path) -> Iterator[Path]:
    for field, schema in schemas[name]["properties"].items():
        path, inner = (*above, field), schema
        if schema.get("type") == "array":
            path, inner = (*path, "[]"), schema["items"]
        references = [*inner.get("allOf", ()), inner]
        [target] = {
            reference["$ref"].rpartition("/")[2] for reference in references if "$ref" in reference
        } or {""}
        kind = target.rpartition(".")[2]
        if field in _SECRET_NAMES:
            yield path
        elif kind in _NAMING or kind == "SecretProjection":
            yield (*path, "name")
        elif target.startswith("io.k8s.api.core.v1."):
            yield from _secret_paths(schemas, target, path)
