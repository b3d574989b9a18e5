"""Refusals, conflicts and names that are taken, on an API server in memory."""

from typing import Any

import pytest

from testing.operator import faults, memory_api, objects
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api import names
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core import remedies
from tfparallel_operator.engine.run import reconcile
from tfparallel_trainer.contract import environment

CHIEF = resources.PODS.path("default", "digits-chief-0")


class Intruder(faults.Fault):
    """Somebody writes to the job just before the next status is written."""

    def __init__(self, api: memory_api.MemoryApi) -> None:
        self.conflicts = 0
        self.manager = ""
        self._api = api

    async def write(self, request: str, send: faults.Send[faults.T]) -> faults.T:
        if self.manager and request.startswith("patch "):
            path, manager = request.removeprefix("patch "), self.manager
            self.manager = ""
            await _report(self._api, path, 1, manager)
        try:
            return await send()
        except errors.Conflict:
            self.conflicts += 1
            raise


async def _report(api: memory_api.MemoryApi, path: str, step: int, manager: str) -> None:
    await api.apply(path, {"metadata": {}, "status": {"progress": {"step": step}}}, manager)


@pytest.fixture
def refusal() -> faults.Refusal:
    """What the API server answers to the creation of a pod; at first nothing special."""
    return faults.Refusal("^create .*/pods/")


@pytest.fixture
def world(refusal: faults.Refusal) -> MemoryCluster:
    return MemoryCluster(refusal)


def _pods(world: MemoryCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.pods]


def _failed(world: MemoryCluster) -> tuple[str, str]:
    condition = world.condition("Failed")
    return condition["reason"], condition["message"]


async def _occupy(api: memory_api.MemoryApi, owner: dict[str, Any] | None) -> None:
    pod = objects.pod("digits-chief-0")
    pod["metadata"]["labels"] = objects.labels("chief")
    pod["metadata"]["ownerReferences"] = [owner] if owner else []
    await api.create(resources.PODS, "default", pod)


QUOTA = 'pods "digits-chief-0" is forbidden: exceeded quota: gpus'


async def test_a_quota_is_waited_for_and_reported(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Refused(QUOTA, status=403)
    async with world.running(objects.job()):
        assert world.status["state"] == "Pending"
        assert _pods(world) == []
        refused = world.condition("CreationRefused")
        assert (refused["status"], refused["reason"]) == ("True", "QuotaExceeded")
        assert refused["message"] == (
            f"the API server refuses to create pods, trying again: {QUOTA}. {remedies.find(QUOTA)}"
        )
        [event] = [
            event
            for event in world.api.items(resources.EVENTS)
            if event["reason"] == names.Reason.QUOTA_EXCEEDED
        ]
        assert event["note"] == refused["message"]
        assert event["type"] == "Warning"
        refusal.error = None
        await world.engine.run_until_quiet()
        assert len(_pods(world)) == 3
        assert world.condition("CreationRefused")["status"] == "False"


async def test_refused_pods_are_left_alone_for_longer_and_longer(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Refused(QUOTA, status=403)
    async with world.running(objects.job(workers=0)):
        before = len(world.api.log)
        for _ in range(60):
            # What else happens to the job does not hurry it.
            world.api.touch(resources.JOBS.path("default", "digits"))
            await world.engine.run_until_quiet(seconds=10)
        assert 6 <= refusal.count <= 14
        assert len(world.api.log) - before <= 1, "nothing is written while nothing changes"


async def test_after_the_first_refusal_the_other_pods_are_not_tried(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    async with world.running(objects.job(workers=60)):
        refusal.error = errors.Refused(QUOTA, status=403)
        world.api.remove(CHIEF)
        await world.engine.run_until_quiet()
        world.api.let_go()
        await world.engine.run_until_quiet(seconds=0)
        assert 1 <= refusal.count <= 4


async def test_a_pod_of_a_dead_node_is_deleted_by_force(world: MemoryCluster) -> None:
    await _lose_a_node(world)
    async with world.running(objects.job(workers=1)):
        await _fail_and_keep(world)
        assert [pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in world.pods] == [
            "2",
            "2",
        ]
        reasons = [event["reason"] for event in world.api.items(resources.EVENTS)]
        assert names.Reason.POD_FORCED in reasons


@pytest.mark.parametrize("trainer", [True, False])
async def test_of_a_command_that_nobody_fences_the_event_warns(
    world: MemoryCluster, trainer: bool
) -> None:
    """The shipped trainer gives way to a newer attempt; a command of a person's own may not."""
    await _lose_a_node(world)
    spec: dict[str, Any] = {"trainer": {"epochs": 1}} if trainer else {}
    async with world.running(objects.job(workers=1, **spec)):
        await _fail_and_keep(world)
    notes = [
        event["note"]
        for event in world.api.items(resources.EVENTS)
        if event["reason"] == names.Reason.POD_FORCED
    ]
    assert notes
    assert {environment.ATTEMPT in note for note in notes} == {not trainer}
    for pod in world.pods:
        [container] = pod["spec"]["containers"]
        assert {"name": environment.ATTEMPT, "value": "2"} in container["env"]


async def test_a_pod_of_a_node_that_lives_is_left_to_it(world: MemoryCluster) -> None:
    await _lose_a_node(world, ready="True")
    async with world.running(objects.job(workers=1)):
        await _fail_and_keep(world)
        assert "1" in {pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in world.pods}
        await world.engine.run_until_quiet(seconds=30)
        await world.engine.run_until_quiet(seconds=30)
        refused = world.condition("CreationRefused")
        assert refused["reason"] == names.Reason.DELETION_STUCK
        assert "node n1 has not ended pod/" in refused["message"]
        assert "`kubectl delete node n1`" in refused["message"]


async def _lose_a_node(world: MemoryCluster, ready: str = "Unknown") -> None:
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    node = {"metadata": {"name": "n1", "namespace": ""}, "status": status}
    await world.api.create(resources.NODES, None, node)


async def _fail_and_keep(world: MemoryCluster) -> None:
    """A worker fails, and its node does not end it when it is deleted."""
    for pod in world.pods:
        pod["spec"]["nodeName"] = "n1"
        pod["status"] = {"phase": "Running", **objects.container(running={})}
        world.api.touch(resources.PODS.path("default", pod["metadata"]["name"]))
    await world.engine.run_until_quiet(seconds=0)
    world.api.remove(CHIEF)
    await world.engine.run_until_quiet(seconds=0)
    for pod in world.pods:
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:30Z"
        world.api.touch(resources.PODS.path("default", pod["metadata"]["name"]))
    for _ in range(8):
        assert {pod["metadata"]["labels"][names.LABEL_ATTEMPT] for pod in world.pods} == {"1"}
        await world.engine.run_until_quiet(seconds=10)
    await world.engine.run_until_quiet(seconds=15)


async def test_a_busy_server_is_asked_again_when_it_said(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Unavailable("busy", status=429, retry_after=20.0)
    async with world.running(objects.job()):
        asked = refusal.count
        await world.engine.run_until_quiet(seconds=15)
        assert refusal.count == asked
        refusal.error = None
        await world.engine.run_until_quiet(seconds=6)
        assert len(_pods(world)) == 3


async def test_pauses_grow_to_half_a_minute_while_the_server_does_not_answer(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Unavailable("no answer")
    async with world.running(objects.job(workers=0)):
        for _ in range(60):
            await world.engine.run_until_quiet(seconds=10)
        before = refusal.count
        assert before <= 40
        await world.engine.run_until_quiet(seconds=reconcile.UNANSWERED_SECONDS)
        assert refusal.count == before + 1


async def test_a_deadline_holds_while_pods_are_refused(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Refused("exceeded quota: gpus", status=403)
    async with world.running(objects.job(runPolicy={"activeDeadlineSeconds": 100})):
        for _ in range(8):
            await world.engine.run_until_quiet(seconds=10)
        assert world.status["state"] == "Pending"
        await world.engine.run_until_quiet(seconds=20)
        assert _failed(world)[0] == names.Reason.DEADLINE_EXCEEDED


async def test_an_invalid_template_fails_the_job_with_the_servers_sentence(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Invalid("spec.containers[0].image: Required value", status=422)
    async with world.running(objects.job()):
        reason, message = _failed(world)
        assert reason == names.Reason.INVALID_TEMPLATE
        assert "spec.containers[0].image: Required value" in message
        refused = refusal.count
        assert refused <= 2, "one pod of each role is enough to find out"
        await world.engine.run_until_quiet(seconds=1000)
        assert refusal.count == refused


async def test_a_corrected_template_starts_the_job_after_all(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Invalid("no image", status=422)
    async with world.running(objects.job()):
        refusal.error = None
        path = resources.JOBS.path("default", "digits")
        await world.api.patch(path, {"spec": objects.job(workers=1)["spec"]})
        await world.engine.run_until_quiet()
        assert world.status["state"] == "Pending"
        assert _pods(world) == ["digits-chief-0", "digits-worker-0"]


async def test_a_foreign_pod_of_the_name_is_left_alone_and_named(world: MemoryCluster) -> None:
    await _occupy(world.api, None)
    async with world.running(objects.job()):
        refused = world.condition("CreationRefused")
        assert (refused["status"], refused["reason"]) == ("True", names.Reason.NAME_CONFLICT)
        assert refused["message"] == (
            "objects that are not the job's own have names that it needs:"
            " pod/digits-chief-0. Delete them: `kubectl delete pod/digits-chief-0`. Or give the job"
            " another name."
        )
        assert "digits-chief-0" in _pods(world)


async def test_what_goes_by_itself_is_no_warning(world: MemoryCluster) -> None:
    await _occupy(world.api, objects.owner(uid="earlier"))
    async with world.running(objects.job()):
        assert world.condition("CreationRefused")["reason"] == names.Reason.NAME_HELD
        events = world.api.items(resources.EVENTS)
        [event] = [event for event in events if event["reason"] == names.Reason.NAME_HELD]
        assert event["type"] == "Normal"


async def test_a_pod_that_lost_its_label_is_named(
    world: MemoryCluster, refusal: faults.Refusal
) -> None:
    refusal.error = errors.Refused(QUOTA, status=403)
    async with world.running(objects.job(workers=0)):
        refusal.error = None
        [job] = world.api.items(resources.JOBS)
        pod = objects.pod("digits-chief-0")
        pod["metadata"]["ownerReferences"] = [objects.owner(uid=job["metadata"]["uid"])]
        pod["metadata"]["labels"] = objects.labels("chief")
        pod["metadata"]["labels"][names.LABEL_MANAGED_BY] = "somebody"
        await world.api.create(resources.PODS, "default", pod)
        await world.engine.run_until_quiet()
        refused = world.condition("CreationRefused")
        assert refused["reason"] == names.Reason.NAME_CONFLICT
        assert f"lost the label {names.LABEL_MANAGED_BY}" in refused["message"]


async def test_a_pod_that_a_finalizer_keeps_is_not_forced(world: MemoryCluster) -> None:
    await _lose_a_node(world)
    async with world.running(objects.job(workers=0)):
        [pod] = world.pods
        pod["spec"]["nodeName"] = "n1"
        ended = {"exitCode": 75, "reason": "Error"}
        pod["status"] = {"phase": "Failed", **objects.container(terminated=ended)}
        pod["metadata"]["finalizers"] = ["example.com/flush-logs"]
        world.api.touch(CHIEF)
        for _ in range(20):
            await world.engine.run_until_quiet(seconds=10)
        refused = world.condition("CreationRefused")
        assert refused["reason"] == names.Reason.DELETION_STUCK
        assert "finalizer example.com/flush-logs keeps pod/digits-chief-0" in refused["message"]
        assert "`kubectl edit pod/digits-chief-0`" in refused["message"]
        reasons = [event["reason"] for event in world.api.items(resources.EVENTS)]
        assert names.Reason.POD_FORCED not in reasons
        assert reasons.count(names.Reason.DELETION_STUCK) == 1
        world.api.remove(CHIEF)
        await world.engine.run_until_quiet()
        assert world.condition("CreationRefused")["status"] == "False"


async def test_a_pod_of_an_earlier_job_of_the_name_is_waited_for(world: MemoryCluster) -> None:
    await _occupy(world.api, objects.owner(uid="earlier"))
    async with world.running(objects.job()):
        await world.engine.run_until_quiet()
        assert world.status["state"] == "Pending"
        world.api.remove(CHIEF)
        await world.engine.run_until_quiet()
        assert len(world.api.created) == 4
        chief = world.api.object(CHIEF)
        assert chief["metadata"]["ownerReferences"][0]["uid"] != "earlier"


async def test_an_object_that_is_no_valid_job_fails_once_and_is_left_alone(
    world: MemoryCluster,
) -> None:
    async with world.running(objects.job(successPolicy="Sometimes")):
        reason, message = _failed(world)
        assert reason == names.Reason.INVALID_SPEC
        assert "successPolicy" in message
        assert world.status["observedGeneration"] == 1
        before = len(world.api.log)
        await world.engine.sweeper.sweep()
        await world.engine.run_until_quiet(seconds=1000)
        assert len(world.api.log) == before


async def test_a_job_that_changed_under_a_decision_is_read_and_decided_again() -> None:
    api = memory_api.MemoryApi()
    intruder = Intruder(api)
    world = MemoryCluster(intruder, api=api)
    async with world.running(objects.job()):
        intruder.manager = "tfparallel-progress"
        for pod in world.api.items(resources.PODS):
            pod["status"] = {"phase": "Running"}
            world.api.touch(resources.PODS.path("default", pod["metadata"]["name"]))
        await world.engine.run_until_quiet()
        assert intruder.conflicts == 1
        assert world.status["state"] == "Running"
        assert world.status["progress"] == {"step": 1}


async def test_progress_is_never_written_by_the_engine(world: MemoryCluster) -> None:
    async with world.running(objects.job()):
        path = resources.JOBS.path("default", "digits", "status")
        await _report(world.api, path, 7, "tfparallel-progress")
        world.api.remove(CHIEF)
        await world.engine.run_until_quiet()
        assert world.status["attempt"] == 2
        assert world.status["progress"] == {"step": 7}


async def test_a_job_that_is_deleted_is_not_looked_at_again(world: MemoryCluster) -> None:
    async with world.running(objects.job()):
        world.api.remove(resources.JOBS.path("default", "digits"), "deleted by a person")
        await world.engine.run_until_quiet()
        assert _pods(world) == []
        assert world.api.log[-1] == "deleted by a person"
