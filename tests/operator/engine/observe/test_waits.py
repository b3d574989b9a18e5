"""Why pods wait, where their status does not say: what is read, and how often."""

from typing import Any

import pytest

from testing import clock
from testing.operator import memory_api, objects, small_world
from tfparallel_operator.api import types
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import observation, replicas
from tfparallel_operator.engine.observe import waits
from tfparallel_operator.engine.workqueue import queue, timers

NO_CONFIG_MAP = 'MountVolume.SetUp failed for volume "source" : configmap "digits" not found'


class Api(memory_api.MemoryApi):
    """Counts how often Events are read, and may refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.refuses = False

    async def page(
        self, resource: resources.Resource, namespace: str | None, *more: Any, **fields: Any
    ) -> client.Listing:
        if resource == resources.EVENTS:
            self.reads += 1
            if self.refuses:
                raise errors.Refused("events is forbidden", status=403)
        return await super().page(resource, namespace, *more, **fields)

    async def warn(self, pod: str, message: str) -> None:
        """Report that a volume of a pod is not there, as the kubelet does."""
        uid = (await self.get(resources.PODS.path("default", pod)))["metadata"]["uid"]
        event = {
            "metadata": {"name": f"warning-{self.version}"},
            "type": "Warning",
            "reason": "FailedMount",
            "note": message,
            "regarding": {"kind": "Pod", "name": pod, "uid": uid},
            "eventTime": "2026-11-21T10:00:00.000000Z",
        }
        await self.create(resources.EVENTS, "default", event)


def message(world: small_world.World) -> str:
    [running] = [one for one in world.status["conditions"] if one["type"] == "Running"]
    return str(running["message"])


async def test_the_condition_says_what_an_event_says() -> None:
    api = Api()
    world = small_world.World(api)
    async with world.running(objects.job(workers=0)):
        await api.warn("digits-chief-0", NO_CONFIG_MAP)
        await world.engine.settle(29)
        assert message(world) == "0/1 replicas run or have completed"
        await world.engine.settle(1)
        words = f"digits-chief-0: FailedMount: {NO_CONFIG_MAP}"
        assert f"; {words}. Create the ConfigMap" in message(world)
        assert world.status["replicas"]["Chief"]["reason"] == words
        await world.start_pods()
        assert message(world) == "1/1 replicas run or have completed"


async def test_the_condition_names_a_claim_that_has_no_volume() -> None:
    world = small_world.World()
    async with world.running(objects.job(volumeClaimTemplates=[objects.claim_template()])):
        [claim] = world.api.items(resources.CLAIMS)
        for pod in world.api.items(resources.PODS):
            volume = {"name": "data", "persistentVolumeClaim": {"claimName": "digits-data"}}
            pod["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}, volume]
        await world.engine.settle(30)
        assert '"digits-data" names no StorageClass' in message(world)
        claim["status"] = {"phase": "Bound"}
        await world.engine.settle(60)
        assert "StorageClass" not in message(world)


async def test_a_job_is_looked_at_once_a_minute_and_not_at_all_once_it_names_a_cause() -> None:
    api = Api()
    world = small_world.World(api)
    async with world.running(objects.job(workers=0)):
        for seconds, reads in ((29, 0), (1, 1), (59, 1), (1, 2)):
            await world.engine.settle(seconds)
            assert api.reads == reads
        [pod] = api.items(resources.PODS)
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"]["conditions"] = [{**scheduled, "message": "0/4 nodes are available"}]
        api.touch(resources.PODS.path("default", "digits-chief-0"))
        await world.engine.settle(600)
        assert api.reads == 2


async def test_what_was_read_stays_while_events_cannot_be_read() -> None:
    api = Api()
    world = small_world.World(api)
    async with world.running(objects.job(workers=0)):
        await api.warn("digits-chief-0", NO_CONFIG_MAP)
        await world.engine.settle(30)
        api.refuses = True
        await world.engine.settle(60)
        assert api.reads == 2
        assert NO_CONFIG_MAP in message(world)


def waiting_pod(uid: str) -> observation.Pod:
    return observation.Pod(
        name=f"{uid}-chief-0",
        uid=uid,
        replica=replicas.Replica(types.Role.CHIEF, 0),
        attempt=1,
        replica_attempt=0,
        phase=observation.Phase.PENDING,
        node="node-1",
    )


@pytest.mark.parametrize("jobs", [1, 5])
async def test_jobs_are_looked_at_one_after_the_other(jobs: int) -> None:
    api, time = Api(), clock.Clock()
    keys = [queue.Key("default", f"job-{number}") for number in range(jobs)]
    reader = waits.Waits(api, timers.Timers(lambda _: None, time.utc), time.utc)

    async def look() -> int:
        before = api.reads
        for key in keys:
            await reader.of(key, (waiting_pod(key.name),))
        return api.reads - before

    assert await look() == 0
    time.advance(waits.FIRST_LOOK.total_seconds())
    for _ in keys:
        assert await look() == 1
        time.advance(waits.SPACING.total_seconds())
    assert await look() == 0
