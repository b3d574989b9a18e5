"""Names that other objects have, on a real API server: the job says so, and continues when free."""

import contextlib
import copy
import datetime
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testing import waiting
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names, schema
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core.life import dead_nodes, obstacles

FINALIZER = "example.com/flush-logs"
_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"


@pytest.fixture
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    _be_impatient(monkeypatch)


def _be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pods on lost nodes be late in seconds."""
    monkeypatch.setattr(dead_nodes, "PATIENCE", datetime.timedelta(seconds=3))
    monkeypatch.setattr(obstacles, "STUCK_AFTER", datetime.timedelta(seconds=6))


def _events(namespace: Namespace) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]]
    listed = json.loads(namespace.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
    return [event for event in listed if event["regarding"]["kind"] == names.KIND]


def _bound(namespace: Namespace, **spec: Any) -> dict[str, Any]:
    """Return a job of one pod on a node that is not ready."""
    job = objects.job(workers=0)
    template = objects.template(nodeName=namespace.name, terminationGracePeriodSeconds=1, **spec)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = template
    return job


@contextlib.asynccontextmanager
async def _lost_node(namespace: Namespace) -> AsyncIterator[None]:
    """Have a node that is not ready; other tests on this cluster count its nodes."""
    await namespace.api.create(resources.NODES, None, {"metadata": {"name": namespace.name}})
    try:
        yield
    finally:
        namespace.kubectl("delete", "node", namespace.name)


async def test_restored_children_are_named_at_once_and_one_command_deletes_them(
    namespace: Namespace,
) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        await namespace.until_pods("digits-chief-0")
    saved = json.loads(
        namespace.kubectl("get", "service,configmap,networkpolicy,pod", "-o", "json", "-l", _OURS)
    )
    await namespace.clear()
    namespace.kubectl("delete", "service,configmap,networkpolicy", "-l", _OURS)
    for item in saved["items"]:
        for field in ("ownerReferences", "uid", "resourceVersion"):
            item["metadata"].pop(field)
        item.get("spec", {}).pop("clusterIP", None)
        item.get("spec", {}).pop("clusterIPs", None)
    namespace.kubectl("create", "-f", "-", body=saved)
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        refused = await namespace.until_refused("NameConflict")
        [command] = re.findall(r"`kubectl (delete [^`]+)`", refused["message"])
        assert command.split()[1:] == [
            "configmap/digits-tfparallel",
            "networkpolicy/digits-tfparallel",
            "pod/digits-chief-0",
            "service/digits",
        ]
        namespace.kubectl(*command.split())
        await namespace.until_let_through()
        [pod] = (await namespace.until_pods("digits-chief-0")).values()
        assert pod["metadata"]["ownerReferences"]


async def test_a_finalizer_of_others_is_named_and_nothing_is_said_to_be_forced(
    namespace: Namespace, is_impatient: None
) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        await namespace.run_pods("digits-chief-0")
        patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
        namespace.kubectl("patch", "pod", "digits-chief-0", "--type=merge", "-p", patch)
        await namespace.end("digits-chief-0", 75)
        refused = await namespace.until_refused("DeletionStuck")
        assert f"finalizer {FINALIZER} keeps pod/digits-chief-0" in refused["message"]
        assert (await namespace.status())["state"] == "Restarting"
        patch = json.dumps({"metadata": {"finalizers": None}})
        namespace.kubectl("patch", "pod", "digits-chief-0", "--type=merge", "-p", patch)
        await namespace.until_pods("digits-chief-0", attempt=2)
        await namespace.until_let_through()
        assert "PodForced" not in {event["reason"] for event in _events(namespace)}


@pytest.mark.parametrize("again", [True, False])
async def test_a_pod_of_a_deleted_job_on_a_lost_node_is_deleted_by_force(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    async with _lost_node(namespace), namespace.operator():
        first = await namespace.create_job(_bound(namespace))
        await namespace.until_pods("digits-chief-0")
        namespace.kubectl("delete", "tfpj", "digits")
        # Without a garbage collector the test is it.
        namespace.kubectl("delete", "service,configmap,networkpolicy", "-l", _OURS)
        if not again:
            _be_impatient(monkeypatch)
        namespace.kubectl("delete", "pod", "digits-chief-0", "--wait=false")
        if again:
            await namespace.create_job(_bound(namespace))
            refused = await namespace.until_refused("NameHeld")
            assert "pod/digits-chief-0 of an earlier job" in refused["message"]
            _be_impatient(monkeypatch)

        async def is_replaced() -> bool:
            owners = [
                pod["metadata"]["ownerReferences"][0] for pod in (await namespace.pods()).values()
            ]
            return len(owners) == again and all(
                owner["uid"] != first["metadata"]["uid"] for owner in owners
            )

        await waiting.until_async(is_replaced, "the pod of the deleted job is gone")
        if again:
            await namespace.until_let_through()
            assert "PodForced" in {event["reason"] for event in _events(namespace)}


async def test_what_deleted_jobs_left_is_found_by_an_operator_that_starts(
    namespace: Namespace, is_impatient: None
) -> None:
    async with _lost_node(namespace), namespace.operator():
        await namespace.create_job(_bound(namespace))
        await namespace.until_pods("digits-chief-0")
    namespace.kubectl("delete", "tfpj", "digits")
    namespace.kubectl("delete", "pod", "digits-chief-0", "--wait=false")
    async with namespace.operator():
        await namespace.until_gone(resources.PODS.path(namespace.name, "digits-chief-0"))


@pytest.mark.parametrize("cascade", ["foreground", "background"])
async def test_a_lost_node_does_not_keep_a_job_from_being_deleted(
    namespace_with_nodes: Namespace, is_impatient: None, cascade: str
) -> None:
    namespace = namespace_with_nodes
    async with _lost_node(namespace), namespace.operator():
        job = _bound(namespace, tolerations=[{"operator": "Exists"}])
        await namespace.create_job(job)
        await namespace.until_pods("digits-chief-0")
        namespace.kubectl("delete", "tfpj", "digits", f"--cascade={cascade}", "--wait=false")
        await namespace.until_gone(resources.PODS.path(namespace.name, "digits-chief-0"))
        await namespace.until_gone(resources.JOBS.path(namespace.name, "digits"))


async def test_a_pod_that_lost_its_label_is_named_when_its_name_is_needed(
    namespace: Namespace,
) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "digits-chief-0"}, **objects.template()}
    pod["metadata"]["labels"] = {**objects.labels("chief"), names.LABEL_MANAGED_BY: "somebody"}
    job = await namespace.create_job(objects.job(workers=0))
    pod["metadata"]["ownerReferences"] = [objects.owner(uid=job["metadata"]["uid"])]
    await namespace.api.create(resources.PODS, namespace.name, pod)
    async with namespace.operator():
        refused = await namespace.until_refused("NameConflict")
        assert f"lost the label {names.LABEL_MANAGED_BY}" in refused["message"]
        namespace.kubectl("delete", "pod", "digits-chief-0", "--force", "--grace-period=0")
        await namespace.until_let_through()


RULE = {"rule": "!self.metadata.name.startsWith('1')", "message": "a name begins with a letter"}


def _define(namespace: Namespace, *rules: dict[str, str]) -> None:
    """Install the definition of jobs with other rules at its root."""
    definition = copy.deepcopy(schema.custom_resource_definition())
    [version] = definition["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = list(rules)
    namespaces.install(namespace.cluster, definition)


async def test_a_failure_that_the_status_cannot_take_is_reported_by_events(
    namespace: Namespace,
) -> None:
    """The job was stored before its definition got a rule at its root."""

    async def is_stored() -> bool:
        with contextlib.suppress(errors.Invalid):
            await namespace.create_job(objects.job("1st-run", workers=0))
            return True
        return False

    async def applies() -> bool:
        try:
            await namespace.api.check(resources.JOBS, namespace.name, objects.job("1-more"))
        except errors.Invalid as error:
            return RULE["message"] in str(error)
        return False

    async def reasons() -> set[str]:
        return {event["reason"] for event in _events(namespace)}

    try:
        _define(namespace)
        await waiting.until_async(is_stored, "the job is stored")
        _define(namespace, RULE)
        await waiting.until_async(applies, "the rule applies")
        async with namespace.operator():
            expected = {"InvalidSpec", "StatusRefused"}
            await waiting.until_async(reasons, "the failure is reported", when=expected.__eq__)
        assert await namespace.status("1st-run") == {}
        [refused] = [event for event in _events(namespace) if event["reason"] == "StatusRefused"]
        assert RULE["message"] in refused["note"]
    finally:
        await namespace.delete_jobs()
        namespaces.install(namespace.cluster)
