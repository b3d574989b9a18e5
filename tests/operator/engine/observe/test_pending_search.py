"""Why pods wait, where their status does not say: what is read, and how often."""

from typing import Any

import pytest

from testing import clock
from testing.operator import memory_api, memory_cluster, objects
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api import types
from tfparallel_operator.api_server import errors, lists, resources
from tfparallel_operator.core import observation, replicas
from tfparallel_operator.engine.observe import pending_search
from tfparallel_operator.engine.observe.job_memory import JobMemories
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.workqueue.timers import Timers

NO_CONFIG_MAP = 'MountVolume.SetUp failed for volume "source" : configmap "digits" not found'
NO_ROOM = "0/4 nodes are available: 4 Insufficient cpu"


class Api(memory_api.MemoryApi):
    """Counts how often Events are read, and may refuse it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.refuses = False

    async def page(
        self, resource: resources.Resource, namespace: str | None, *more: Any, **fields: Any
    ) -> lists.Listing:
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


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def world(api: Api) -> MemoryCluster:
    return MemoryCluster(api=api)


def message(world: MemoryCluster) -> str:
    [running] = [
        condition for condition in world.status["conditions"] if condition["type"] == "Running"
    ]
    return str(running["message"])


def say(api: Api, name: str, message: str) -> None:
    """Have the scheduler say why a pod has no node."""
    path = resources.PODS.path("default", name)
    [pod] = [pod for pod in api.items(resources.PODS) if pod["metadata"]["name"] == name]
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pod["status"]["conditions"] = [{**scheduled, "message": message}]
    api.touch(path)


async def test_the_condition_says_what_an_event_says(api: Api, world: MemoryCluster) -> None:
    async with world.running(objects.job(workers=0)):
        await api.warn("digits-chief-0", NO_CONFIG_MAP)
        await world.engine.run_until_quiet(29)
        assert message(world) == "0/1 replicas run or have completed"
        await world.engine.run_until_quiet(1)
        cause = f"digits-chief-0: FailedMount: {NO_CONFIG_MAP}"
        assert f"; {cause}. Create the ConfigMap" in message(world)
        assert world.status["replicas"]["Chief"]["reason"] == cause
        await world.start_pods()
        assert message(world) == "1/1 replicas run or have completed"


async def test_an_event_with_an_odd_time_and_a_very_long_note_is_read(
    api: Api, world: MemoryCluster
) -> None:
    """The API server stores both, and whoever may write Events may write such ones."""
    async with world.running(objects.job(workers=0)):
        await api.warn("digits-chief-0", "no volume " + "x" * 100_000)
        [event] = [
            event for event in api.items(resources.EVENTS) if event["reason"] == "FailedMount"
        ]
        event["eventTime"] = "10000-01-01T00:00:00.000000Z"
        await world.engine.run_until_quiet(seconds=60)
        assert "FailedMount: no volume xx" in message(world)


async def test_the_condition_names_a_claim_that_has_no_volume(world: MemoryCluster) -> None:
    async with world.running(objects.job(volumeClaimTemplates=[objects.claim_template()])):
        [claim] = world.api.items(resources.CLAIMS)
        for pod in world.api.items(resources.PODS):
            volume = {"name": "data", "persistentVolumeClaim": {"claimName": "digits-data"}}
            pod["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}, volume]
        await world.engine.run_until_quiet(30)
        await world.engine.run_until_quiet(1)  # the workers have their turn after the chief
        assert '"digits-data" names no StorageClass' in message(world)
        claim["status"] = {"phase": "Bound"}
        await world.engine.run_until_quiet(60)
        await world.engine.run_until_quiet(1)
        assert "StorageClass" not in message(world)


async def test_a_role_is_looked_at_once_a_minute_and_not_at_all_once_it_names_a_cause(
    api: Api, world: MemoryCluster
) -> None:
    async with world.running(objects.job(workers=0)):
        for seconds, reads in ((29, 0), (1, 1), (59, 1), (1, 2)):
            await world.engine.run_until_quiet(seconds)
            assert api.reads == reads
        say(api, "digits-chief-0", "0/4 nodes are available")
        await world.engine.run_until_quiet(600)
        assert api.reads == 2


async def test_a_pod_that_names_its_cause_hides_no_other(api: Api, world: MemoryCluster) -> None:
    async with world.running(objects.job(workers=1)):
        say(api, "digits-chief-0", NO_ROOM)
        await api.warn("digits-worker-0", NO_CONFIG_MAP)
        await world.engine.run_until_quiet(30)
        assert f"; digits-chief-0: Unschedulable: {NO_ROOM}. Lower resources" in message(world)
        assert f" digits-worker-0: FailedMount: {NO_CONFIG_MAP}. Create the" in message(world)


async def test_a_pod_of_which_nobody_says_anything_hides_no_other(
    api: Api, world: MemoryCluster
) -> None:
    """The first worker pulls a large image; the third has the cause."""
    async with world.running(objects.job(workers=3)):
        say(api, "digits-chief-0", NO_ROOM)
        await api.warn("digits-worker-2", NO_CONFIG_MAP)
        for seconds, names_it in ((30, False), (60, False), (60, True), (60, True)):
            await world.engine.run_until_quiet(seconds)
            assert (NO_CONFIG_MAP in message(world)) == names_it
        assert api.reads == 4


async def test_what_was_read_stays_while_events_cannot_be_read(
    api: Api, world: MemoryCluster
) -> None:
    async with world.running(objects.job(workers=0)):
        await api.warn("digits-chief-0", NO_CONFIG_MAP)
        await world.engine.run_until_quiet(30)
        api.refuses = True
        await world.engine.run_until_quiet(60)
        assert api.reads == 2
        assert NO_CONFIG_MAP in message(world)


def waiting_pod(job: str, role: types.Role) -> observation.Pod:
    return observation.Pod(
        name=f"{job}-{role.label}-0",
        uid=f"uid-of-{job}-{role.label}-0",
        replica=replicas.Replica(role, 0),
        attempt=1,
        replica_attempt=0,
        phase=observation.Phase.PENDING,
        node="node-1",
    )


@pytest.mark.parametrize("roles", [(types.Role.CHIEF,), (types.Role.CHIEF, types.Role.WORKER)])
@pytest.mark.parametrize("jobs", [1, 5])
async def test_one_look_a_second_and_one_a_minute_for_each_role_are_the_bound(
    jobs: int, roles: tuple[types.Role, ...], api: Api
) -> None:
    time = clock.Clock()
    keys = [queue.Key("default", f"job-{number}") for number in range(jobs)]
    reader = pending_search.PendingSearch(
        api, Timers(lambda _: None, time.utc), time.utc, JobMemories()
    )

    async def look() -> int:
        before = api.reads
        for key in keys:
            await reader.find_reasons(key, tuple(waiting_pod(key.name, role) for role in roles))
        return api.reads - before

    assert await look() == 0
    time.advance(pending_search.FIRST_LOOK.total_seconds())
    for _ in range(2):
        reads = []
        for _ in range(int(pending_search.NEXT_LOOK / pending_search.SPACING)):
            reads.append(await look())
            time.advance(pending_search.SPACING.total_seconds())
        most = len(roles) * jobs
        assert reads == [1] * most + [0] * (len(reads) - most)


class Tenants:
    """Jobs whose chief waits, in namespaces; each is looked at when its timer fires."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.time = clock.Clock()
        self.timers = Timers(self._fire, self.time.utc)
        self.memories = JobMemories()
        self.reader = pending_search.PendingSearch(api, self.timers, self.time.utc, self.memories)
        self.keys: set[queue.Key] = set()
        self.failing: set[queue.Key] = set()
        self.due: set[queue.Key] = set()
        self.read: list[queue.Key] = []
        """The jobs whose Events were read, in this order."""

    def _fire(self, key: queue.Key) -> None:
        self.due.add(key)

    def add(self, namespace: str, count: int) -> None:
        keys = {queue.Key(namespace, f"job-{number}") for number in range(count)}
        self.keys |= keys
        self.due |= keys

    async def pass_seconds(self, seconds: int) -> None:
        """Let time pass, and look at each job whose timer fires."""
        for _ in range(seconds):
            await self._look_at_due()
            self.time.advance(1)
            memory_cluster.fire_due(self.timers)
        await self._look_at_due()

    async def _look_at_due(self) -> None:
        for key in sorted(self.due - self.failing):
            before = self.api.reads
            pods = (waiting_pod(key.name, types.Role.CHIEF),) if key in self.keys else ()
            await self.reader.find_reasons(key, pods)
            self.read += [key] * (self.api.reads - before)
        self.due.clear()


async def test_a_namespace_with_many_waiting_jobs_does_not_delay_that_of_another(api: Api) -> None:
    tenants = Tenants(api)
    tenants.add("crowd", 200)
    await tenants.pass_seconds(40)
    tenants.add("other", 2)
    await tenants.pass_seconds(34)
    assert sum(key.namespace == "other" for key in tenants.read) == 2
    assert api.reads == len(tenants.read) == 40 + 34 - 30 + 1, "once a second"
    await tenants.pass_seconds(400)
    assert set(tenants.read) == tenants.keys


async def test_a_job_that_is_gone_or_fails_when_it_has_its_turn_holds_up_no_other(
    api: Api,
) -> None:
    tenants = Tenants(api)
    for namespace in ("a", "b", "c", "d"):
        tenants.add(namespace, 2)
    await tenants.pass_seconds(30)
    [first] = tenants.read
    gone, failing, *others = sorted(tenants.keys - {first}, key=lambda key: key.name)
    assert gone.namespace != failing.namespace
    tenants.keys.discard(gone)
    tenants.reader.give_up(gone, tenants.memories.forget(gone).searches)
    tenants.failing.add(failing)
    for _ in range(4):
        tenants.due |= tenants.keys  # The sweeper lists all jobs from time to time.
        await tenants.pass_seconds(12)
    assert {*tenants.read} == {first, *others}
    tenants.failing.clear()
    tenants.due.add(failing)
    await tenants.pass_seconds(12)
    assert failing in tenants.read
