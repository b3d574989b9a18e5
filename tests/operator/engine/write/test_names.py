"""Names that other objects have, on a real API server: said on the job, which goes on when free."""

import contextlib
import copy
import datetime
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testing import waiting
from testing.operator import harness, objects, places
from tfparallel_operator.api import names, schema
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core.life import cleanup, obstacles

FINALIZER = "example.com/flush-logs"
_OURS = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"


@pytest.fixture
def is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    _be_impatient(monkeypatch)


def _be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pods on lost nodes be late in seconds."""
    monkeypatch.setattr(cleanup, "PATIENCE", datetime.timedelta(seconds=3))
    monkeypatch.setattr(obstacles, "STUCK_AFTER", datetime.timedelta(seconds=6))


def _events(place: harness.Place) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]]
    listed = json.loads(place.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
    return [one for one in listed if one["regarding"]["kind"] == names.KIND]


def _bound(place: harness.Place, **spec: Any) -> dict[str, Any]:
    """Return a job of one pod on a node that is not ready."""
    job = objects.job(workers=0)
    template = objects.template(nodeName=place.namespace, terminationGracePeriodSeconds=1, **spec)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = template
    return job


@contextlib.asynccontextmanager
async def _lost_node(place: harness.Place) -> AsyncIterator[None]:
    """Have a node that is not ready; other tests on this cluster count its nodes."""
    await place.api.create(resources.NODES, None, {"metadata": {"name": place.namespace}})
    try:
        yield
    finally:
        place.kubectl("delete", "node", place.namespace)


async def test_restored_children_are_named_at_once_and_one_command_deletes_them(
    place: harness.Place,
) -> None:
    async with place.operator():
        await place.create_job(objects.job(workers=0))
        await place.until_pods("digits-chief-0")
    saved = json.loads(
        place.kubectl("get", "service,configmap,networkpolicy,pod", "-o", "json", "-l", _OURS)
    )
    await place.clear()
    place.kubectl("delete", "service,configmap,networkpolicy", "-l", _OURS)
    for item in saved["items"]:
        for field in ("ownerReferences", "uid", "resourceVersion"):
            item["metadata"].pop(field)
        item.get("spec", {}).pop("clusterIP", None)
        item.get("spec", {}).pop("clusterIPs", None)
    place.kubectl("create", "-f", "-", body=saved)
    async with place.operator():
        await place.create_job(objects.job(workers=0))
        refused = await place.until_refused("NameConflict")
        [command] = re.findall(r"`kubectl (delete [^`]+)`", refused["message"])
        assert command.split()[1:] == [
            "configmap/digits-tfparallel",
            "networkpolicy/digits-tfparallel",
            "pod/digits-chief-0",
            "service/digits",
        ]
        place.kubectl(*command.split())
        await place.until_let_through()
        [pod] = (await place.until_pods("digits-chief-0")).values()
        assert pod["metadata"]["ownerReferences"]


async def test_a_finalizer_of_others_is_named_and_nothing_is_said_to_be_forced(
    place: harness.Place, is_impatient: None
) -> None:
    async with place.operator():
        await place.create_job(objects.job(workers=0))
        await place.until_pods("digits-chief-0")
        await place.run_all()
        await place.until_state("Running")
        patch = json.dumps({"metadata": {"finalizers": [FINALIZER]}})
        place.kubectl("patch", "pod", "digits-chief-0", "--type=merge", "-p", patch)
        await place.end("digits-chief-0", 75)
        refused = await place.until_refused("DeletionStuck")
        assert f"finalizer {FINALIZER} keeps pod/digits-chief-0" in refused["message"]
        assert (await place.status())["state"] == "Restarting"
        patch = json.dumps({"metadata": {"finalizers": None}})
        place.kubectl("patch", "pod", "digits-chief-0", "--type=merge", "-p", patch)
        await place.until_pods("digits-chief-0", attempt=2)
        await place.until_let_through()
        assert "PodForced" not in {one["reason"] for one in _events(place)}


@pytest.mark.parametrize("again", [True, False])
async def test_a_pod_of_a_deleted_job_on_a_lost_node_is_deleted_by_force(
    place: harness.Place, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    async with _lost_node(place), place.operator():
        first = await place.create_job(_bound(place))
        await place.until_pods("digits-chief-0")
        place.kubectl("delete", "tfpj", "digits")
        # Without a garbage collector the test is it.
        place.kubectl("delete", "service,configmap,networkpolicy", "-l", _OURS)
        if not again:
            _be_impatient(monkeypatch)
        place.kubectl("delete", "pod", "digits-chief-0", "--wait=false")
        if again:
            await place.create_job(_bound(place))
            refused = await place.until_refused("NameHeld")
            assert "pod/digits-chief-0 of an earlier job" in refused["message"]
            _be_impatient(monkeypatch)

        async def is_replaced() -> bool:
            owners = [
                pod["metadata"]["ownerReferences"][0] for pod in (await place.pods()).values()
            ]
            return len(owners) == again and all(
                owner["uid"] != first["metadata"]["uid"] for owner in owners
            )

        await waiting.until_async(is_replaced, "the pod of the deleted job is gone")
        if again:
            await place.until_let_through()
            assert "PodForced" in {one["reason"] for one in _events(place)}


async def test_what_deleted_jobs_left_is_found_by_an_operator_that_starts(
    place: harness.Place, is_impatient: None
) -> None:
    async with _lost_node(place), place.operator():
        await place.create_job(_bound(place))
        await place.until_pods("digits-chief-0")
    place.kubectl("delete", "tfpj", "digits")
    place.kubectl("delete", "pod", "digits-chief-0", "--wait=false")
    async with place.operator():
        await place.until_gone(resources.PODS.path(place.namespace, "digits-chief-0"))


@pytest.mark.parametrize("cascade", ["foreground", "background"])
async def test_a_lost_node_does_not_keep_a_job_from_being_deleted(
    place_with_nodes: harness.Place, is_impatient: None, cascade: str
) -> None:
    place = place_with_nodes
    async with _lost_node(place), place.operator():
        job = _bound(place, tolerations=[{"operator": "Exists"}])
        await place.create_job(job)
        await place.until_pods("digits-chief-0")
        place.kubectl("delete", "tfpj", "digits", f"--cascade={cascade}", "--wait=false")
        await place.until_gone(resources.PODS.path(place.namespace, "digits-chief-0"))
        await place.until_gone(resources.JOBS.path(place.namespace, "digits"))


async def test_a_pod_that_lost_its_label_is_named_when_its_name_is_needed(
    place: harness.Place,
) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "digits-chief-0"}, **objects.template()}
    pod["metadata"]["labels"] = {**objects.labels("chief"), names.LABEL_MANAGED_BY: "somebody"}
    job = await place.create_job(objects.job(workers=0))
    pod["metadata"]["ownerReferences"] = [objects.owner(uid=job["metadata"]["uid"])]
    await place.api.create(resources.PODS, place.namespace, pod)
    async with place.operator():
        refused = await place.until_refused("NameConflict")
        assert f"lost the label {names.LABEL_MANAGED_BY}" in refused["message"]
        place.kubectl("delete", "pod", "digits-chief-0", "--force", "--grace-period=0")
        await place.until_let_through()


RULE = {"rule": "!self.metadata.name.startsWith('1')", "message": "a name begins with a letter"}


def _define(place: harness.Place, *rules: dict[str, str]) -> None:
    """Install the definition of jobs with other rules at its root."""
    definition = copy.deepcopy(schema.custom_resource_definition())
    [version] = definition["spec"]["versions"]
    version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = list(rules)
    places.install(place.cluster, definition)


async def test_a_verdict_that_the_status_cannot_take_is_said_by_events(
    place: harness.Place,
) -> None:
    """The job was stored before its definition got a rule at its root."""

    async def is_stored() -> bool:
        with contextlib.suppress(errors.Invalid):
            await place.create_job(objects.job("1st-run", workers=0))
            return True
        return False

    async def is_in_force() -> bool:
        try:
            await place.api.check(resources.JOBS, place.namespace, objects.job("1-more"))
        except errors.Invalid as error:
            return RULE["message"] in str(error)
        return False

    async def reasons() -> set[str]:
        return {one["reason"] for one in _events(place)}

    try:
        _define(place)
        await waiting.until_async(is_stored, "the job is stored")
        _define(place, RULE)
        await waiting.until_async(is_in_force, "the rule is in force")
        async with place.operator():
            expected = {"InvalidSpec", "StatusRefused"}
            await waiting.until_async(reasons, "the verdict is said", when=expected.__eq__)
        assert await place.status("1st-run") == {}
        [refused] = [one for one in _events(place) if one["reason"] == "StatusRefused"]
        assert RULE["message"] in refused["note"]
    finally:
        await place.delete_jobs()
        places.install(place.cluster)
