"""Events: which are written, of which type, and that repeats are not."""

import itertools
from collections.abc import Mapping
from typing import Any

from tests.control_plane import memory_api, objects, small_world
from tests.unit import test_docs
from tfparallel_operator.api import names
from tfparallel_operator.engine import client, errors, resources

CONDITIONS_ALONE = {
    names.Reason.REPLICAS_CREATED,
    names.Reason.JOB_FINISHED,
    names.Reason.CHECKPOINT_CONFIGURED,
    names.Reason.NO_CHECKPOINT,
}

ELSEWHERE = {names.Reason.STALL_DEADLINE_EXCEEDED}
"""What takes reports of progress: the tests of stalls see it written."""

QUOTA = ("Warning", names.Reason.QUOTA_EXCEEDED.value)

SERVERS = {
    "Chief": {"template": objects.template()},
    "Worker": {"replicas": 2, "template": objects.template()},
    "PS": {"template": objects.template()},
}


class RefusingApi(memory_api.MemoryApi):
    """Refuses pods in words that are different each time."""

    def __init__(
        self, kind: type[errors.ApiError], words: str = "exceeded quota", status: int = 403
    ) -> None:
        super().__init__()
        self._refuse = kind
        self._words = words
        self._status = status
        self.refused = itertools.count()

    async def create(
        self, resource: resources.Resource, namespace: str | None, manifest: Mapping[str, Any]
    ) -> client.Object:
        if resource == resources.PODS:
            name, used = manifest["metadata"]["name"], next(self.refused)
            words = f"pods {name!r} is forbidden: {self._words}: {used}"
            raise self._refuse(words, status=self._status)
        return await super().create(resource, namespace, manifest)


class UndeletableApi(memory_api.MemoryApi):
    """Lets nobody delete."""

    async def delete(self, *_: object, **__: object) -> None:
        raise errors.Refused("no right to delete", status=403)


REFUSALS = (
    RefusingApi(errors.Invalid, status=422),
    RefusingApi(errors.Refused),
    RefusingApi(errors.Refused, "no PriorityClass with name big was found"),
    RefusingApi(errors.Refused, "violates PodSecurity"),
    RefusingApi(errors.Unavailable, "busy", 429),
)


async def _restarts() -> list[tuple[str, str]]:
    world = small_world.World()
    async with world.running(objects.job(runPolicy={"backoffLimit": 1})):
        await world.change(suspend=True)
        await world.change(suspend=False)
        await world.start_pods()
        await world.vanish("digits-worker-1")
        await world.start_pods()
        await world.end("digits-worker-0", 1)
        await world.start_pods()
        await world.end("digits-worker-0", 1)
    return world.events()


async def _ends() -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    workers = {"Worker": {"replicas": 2, "template": objects.template()}}
    rule = {"exitCodes": [3], "action": "FailJob"}
    for spec, pod, code in (
        ({}, "digits-chief-0", 0),
        ({"tfReplicaSpecs": workers}, "digits-worker-0", 0),
        ({"runPolicy": {"failurePolicy": {"rules": [rule]}}}, "digits-worker-0", 3),
    ):
        world = small_world.World()
        async with world.running(objects.job(**spec)):
            await world.start_pods()
            await world.end(pod, code)
            await world.engine.settle(seconds=60)
        seen += world.events()
    for field in ("activeDeadlineSeconds", "pendingDeadlineSeconds"):
        world = small_world.World()
        async with world.running(objects.job(runPolicy={field: 60})):
            await world.engine.settle(seconds=60)
        seen += world.events()
    return seen


async def _refusals() -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    for api in REFUSALS:
        world = small_world.World(api)
        async with world.running(objects.job()):
            pass
        seen += world.events()
    world = small_world.World()
    async with world.running(objects.job(strategy="Mirrored")):
        pass
    seen += world.events()
    world = small_world.World()
    other = {**objects.pod("digits-chief-0"), "metadata": {"name": "digits-chief-0", "labels": {}}}
    await world.api.create(resources.PODS, "default", other)
    async with world.running(objects.job()):
        pass
    seen += world.events()
    world = small_world.World(UndeletableApi())
    async with world.running(objects.job()):
        await world.start_pods()
        await world.change(suspend=True)
    return seen + world.events()


async def _scaling() -> list[tuple[str, str]]:
    world = small_world.World()
    async with world.running(objects.job(runPolicy={"scaleCooldownSeconds": 0})):
        await world.start_pods()
        job = resources.JOBS.path("default", "digits")
        await world.api.patch(job, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}})
        await world.let_go()
    return world.events()


async def test_every_event_is_listed_with_its_type() -> None:
    listed = {(kind, reason) for reason, kind, _ in test_docs.rows("events.md", "## Reasons")}
    seen = {*await _restarts(), *await _ends(), *await _refusals(), *await _scaling()}
    assert {one for one in listed if one[1] not in ELSEWHERE} == seen


def test_every_reason_is_one_of_an_event_or_of_conditions_alone() -> None:
    listed = {reason for reason, _, _ in test_docs.rows("events.md", "## Reasons")}
    assert listed.isdisjoint(CONDITIONS_ALONE)
    assert listed | CONDITIONS_ALONE == set(names.Reason)
    page = (test_docs.ROOT / "docs/events.md").read_text()
    sentence = page.split("stand in conditions alone:")[1].split("\n\n")[0]
    assert {word for word in CONDITIONS_ALONE if f"`{word}`" in sentence} == CONDITIONS_ALONE


async def test_a_quota_that_is_tried_again_and_again_gives_one_event() -> None:
    api = RefusingApi(errors.Refused)
    world = small_world.World(api)
    async with world.running(objects.job()):
        for _ in range(20):
            await world.engine.settle(seconds=300)
        assert next(api.refused) > 10
        assert world.events().count(QUOTA) == 1
    async with world.running():
        await world.engine.settle(seconds=300)
        assert world.events().count(QUOTA) == 1


async def test_each_restart_of_a_replica_alone_is_told() -> None:
    world = small_world.World()
    async with world.running(objects.job(tfReplicaSpecs=SERVERS)):
        await world.start_pods()
        for _ in range(3):
            await world.vanish("digits-worker-1")
            await world.start_pods()
        assert world.status["attempt"] == 1
        assert world.events().count(("Warning", "ReplicaLost")) == 3


async def test_the_number_of_events_does_not_grow_with_the_number_of_pods() -> None:
    counts = []
    for workers in (1, 60):
        world = small_world.World()
        async with world.running(objects.job(workers=workers)):
            await world.start_pods()
            await world.end("digits-chief-0", 0)
        counts.append(world.events())
    assert counts[0] == counts[1]


async def test_an_operator_that_is_started_anew_repeats_nothing() -> None:
    world = small_world.World()
    async with world.running(objects.job()):
        await world.start_pods()
    before = world.events()
    async with world.running():
        await world.engine.settle(seconds=60)
    assert world.events() == before
