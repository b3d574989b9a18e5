"""When Events are written: behind what jobs need, in order, bounded, and none is left behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from testing import clock, waiting
from testing.operator import memory_api, objects, small_engine
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import decision
from tfparallel_operator.engine.run import lease
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.write import recorder

BUSY = queue.Key("default", "another")
EVENTS = [decision.normal("JobStarted", f"event {number}") for number in range(4)]


class World:
    """The recorder of an engine whose workers have one job to do, and do not begin."""

    def __init__(self, may_write: Callable[[], None] = lambda: None) -> None:
        self.api = memory_api.MemoryApi()
        self._engine = small_engine.SmallEngine(self.api, self.api, clock.Clock(), may_write)
        self._engine.queue.add(BUSY)
        self.recorder = self._engine.workers.events

    @property
    def messages(self) -> list[str]:
        """What the Events say, in the order in which they were written."""
        events = self.api.items(resources.EVENTS)
        in_order = sorted(events, key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [event["note"] for event in in_order]

    async def record(self, event: decision.Event) -> None:
        job = objects.job()
        job["metadata"] |= {"namespace": "default", "uid": "1"}
        await self.recorder.record(job, event)

    async def rest(self) -> None:
        """Let the workers have done all that there was to do."""
        self._engine.queue.done(await self._engine.queue.get())
        await waiting.idle()

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write Events until the operator ends."""
        task = asyncio.create_task(self.recorder.run())
        await waiting.idle()
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_pods_of_all_jobs_that_wait_come_before_the_first_event() -> None:
    api = memory_api.MemoryApi()
    for number in range(20):
        await api.create(resources.JOBS, "default", objects.job(f"job-{number}"))
    async with small_engine.SmallEngine(api, api, clock.Clock()).running() as engine:
        await engine.settle(seconds=0)
    begun = [line.partition("/events/")[2].partition(".")[0] for line in api.log]
    events = [place for place, job in enumerate(begun) if job]
    pods = [place for place, line in enumerate(api.log) if "/pods/" in line]
    assert {begun[place] for place in events} == {f"job-{number}" for number in range(20)}
    assert len(pods) == 60
    assert max(pods) < min(events)


async def test_events_wait_for_the_work_on_jobs_and_follow_in_their_order() -> None:
    world = World()
    async with world.writing():
        for event in EVENTS[:3]:
            await world.record(event)
        await waiting.idle()
        assert world.messages == []
        await world.rest()
        assert world.messages == ["event 0", "event 1", "event 2"]
        await world.record(EVENTS[3])
        await waiting.idle()
        assert world.messages[3:] == ["event 3"]


async def test_a_warning_waits_for_nothing() -> None:
    world = World()
    await world.record(decision.warning("ReplicaLost", "worker-0 vanished"))
    assert world.messages == ["worker-0 vanished"]


async def test_where_work_never_ends_an_event_waits_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder, "LONGEST_WAIT_SECONDS", 0.0)
    world = World()
    async with world.writing():
        await world.record(EVENTS[0])
        await waiting.until_async(lambda: _settled(world), "the Event")
    assert world.messages == ["event 0"]


async def _settled(world: World) -> list[str]:
    return world.messages


async def test_only_so_many_events_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_WAITING", 1)
    world = World()
    async with world.writing():
        await world.record(EVENTS[0])
        second = asyncio.create_task(world.record(EVENTS[1]))
        await waiting.idle()
        assert not second.done()
        await world.rest()
        await second
        await waiting.idle()
        assert world.messages == ["event 0", "event 1"]


async def test_an_operator_that_ends_writes_the_events_that_wait() -> None:
    world = World()
    async with world.writing():
        for event in EVENTS[:3]:
            await world.record(event)
    assert world.messages == ["event 0", "event 1", "event 2"]


async def test_one_that_lost_the_lease_leaves_them() -> None:
    def refuse() -> None:
        raise lease.Lost("another operator acts")

    world = World(refuse)
    async with world.writing():
        await world.record(EVENTS[0])
        await world.rest()
    assert world.messages == []
