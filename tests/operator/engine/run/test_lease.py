"""The Lease: one holder at a time, whatever the API server and the clocks do."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from testing import clock, waiting
from testing.operator import memory_api
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.run import lease

SECONDS = 15
WITHIN = SECONDS * lease.RENEWED_WITHIN


class FaultyApi(memory_api.MemoryApi):
    """Writes meet what a test has prepared for them, one thing each."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Exception] = []
        self.always: Exception | None = None
        self.met = asyncio.Event()

    async def patch(self, path: str, change: Mapping[str, Any]) -> client.Object:
        self.met.set()
        if self.always is not None:
            raise self.always
        if self.faults:
            raise self.faults.pop(0)
        return await super().patch(path, change)


class World:
    """An API server and operators with one clock, which is that of no machine."""

    def __init__(self) -> None:
        self.api = FaultyApi()
        self.time = clock.Clock(1000)

    def operator(self, name: str, seconds: int = SECONDS) -> lease.Lease:
        terms = lease.Terms("system", "operator", name, seconds)
        return lease.Lease(self.api, terms, clock=self.time)

    @property
    def spec(self) -> dict[str, Any]:
        [stored_lease] = self.api.items(resources.LEASES)
        return dict(stored_lease["spec"])

    async def write(self, **spec: Any) -> None:
        await self.api.patch(resources.LEASES.path("system", "operator"), {"spec": spec})


async def test_the_first_makes_the_lease_and_the_second_waits() -> None:
    world = World()
    first, two = world.operator("one"), world.operator("two")
    assert await first.attempt()
    assert not await two.attempt()
    first.check()
    with pytest.raises(lease.Lost, match="Lease operator has another holder"):
        two.check()
    assert world.spec["holderIdentity"] == "one"
    assert world.spec["leaseDurationSeconds"] == SECONDS
    assert world.spec["leaseTransitions"] == 0
    assert world.spec["acquireTime"] == world.spec["renewTime"]
    assert len(world.spec["renewTime"]) == len("2026-11-21T10:00:00.000000Z")


async def test_of_two_at_the_same_time_one_gets_it() -> None:
    world = World()
    both = [world.operator("one"), world.operator("two")]
    assert sorted([await operator.attempt() for operator in both]) == [False, True]
    results = await asyncio.gather(*(operator.attempt() for operator in both))
    assert sorted(results) == [False, True]


async def test_a_holder_that_renews_is_left_alone_and_one_that_does_not_is_replaced() -> None:
    world = World()
    first, two = world.operator("one"), world.operator("two")
    await first.attempt()
    for _ in range(5):
        assert not await two.attempt()
        world.time.now += SECONDS - 1
        assert await first.attempt()
    assert not await two.attempt()
    world.time.now += SECONDS - 1
    assert not await two.attempt()
    world.time.now += 1
    assert await two.attempt()
    assert (world.spec["holderIdentity"], world.spec["leaseTransitions"]) == ("two", 1)
    assert not await first.attempt()


async def test_a_holder_stops_before_another_may_begin() -> None:
    world = World()
    first, two = world.operator("one"), world.operator("two")
    await first.attempt()
    await two.attempt()
    world.time.now += WITHIN - 0.1
    first.check()
    world.time.now += 0.1
    with pytest.raises(lease.Lost):
        first.check()
    assert not await two.attempt()


async def test_the_time_that_counts_is_the_holders() -> None:
    world = World()
    first, two = world.operator("one", seconds=60), world.operator("two", seconds=3)
    await first.attempt()
    assert not await two.attempt()
    world.time.now += 59
    assert not await two.attempt()
    world.time.now += 1
    assert await two.attempt()


async def test_an_operator_that_is_started_again_in_its_pod_goes_on_at_once() -> None:
    world = World()
    await world.operator("one").attempt()
    again = world.operator("one")
    assert await again.attempt()
    again.check()
    assert world.spec["leaseTransitions"] == 0


async def test_who_lets_go_is_followed_at_once() -> None:
    world = World()
    first, two = world.operator("one"), world.operator("two")
    await first.attempt()
    assert not await two.attempt()
    await two.release()
    assert world.spec["holderIdentity"] == "one"
    await world.write(renewTime="2026-11-21T10:00:00.000000Z")  # its own, whose answer it lost
    await first.release()
    assert "holderIdentity" not in world.spec
    with pytest.raises(lease.Lost):
        first.check()
    assert await two.attempt()
    assert world.spec["leaseTransitions"] == 1


@pytest.mark.parametrize("fault", [errors.Unavailable("down"), errors.NotFound("gone")])
async def test_a_lease_that_cannot_be_let_go_ends_by_itself(fault: Exception) -> None:
    world = World()
    first, two = world.operator("one"), world.operator("two")
    await first.attempt()
    await two.attempt()
    world.api.faults = [fault]
    await first.release()
    world.time.now += SECONDS
    assert await two.attempt()


async def test_a_lease_that_somebody_edits_or_deletes_is_still_held() -> None:
    world = World()
    holder = world.operator("one")
    await holder.attempt()
    await world.write(strategy="OldestEmulationVersion")
    assert await holder.attempt()
    world.api.remove(resources.LEASES.path("system", "operator"))
    assert await holder.attempt()
    assert world.spec["holderIdentity"] == "one"


async def test_without_the_right_to_make_the_lease_the_sentence_says_what_is_missing() -> None:
    class NoRight(FaultyApi):
        async def create(self, *_: object, **__: object) -> client.Object:
            raise errors.Refused("leases is forbidden", status=403)

    leader_lease = lease.Lease(NoRight(), lease.Terms("system", "operator", "one", SECONDS))
    with pytest.raises(errors.Refused, match="Lease operator is not in namespace system and may"):
        await leader_lease.acquire()


async def test_waiting_for_the_lease_goes_on_while_the_api_server_is_away() -> None:
    world = World()
    holder = world.operator("one", seconds=1)
    world.api.faults = [errors.Unavailable("down"), errors.Unavailable("down")]
    await holder.acquire()
    assert not world.api.faults
    holder.check()


async def test_a_renewal_is_tried_again_while_there_is_time() -> None:
    world = World()
    holder = world.operator("one", seconds=1)
    await holder.attempt()
    before = world.spec["renewTime"]
    world.api.faults = [errors.Unavailable("down"), errors.Conflict("changed", status=409)]
    task = asyncio.create_task(holder.keep())
    await waiting.until_in_loop(
        lambda: not world.api.faults and world.spec["renewTime"] != before, "the renewal"
    )
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_cannot_renew_in_time_has_lost() -> None:
    world = World()
    holder = world.operator("one", seconds=1)
    await holder.attempt()
    world.api.always = errors.Unavailable("the server does not answer")
    task = asyncio.create_task(holder.keep())
    await world.api.met.wait()
    world.time.now += 1
    with pytest.raises(lease.Lost, match=r"could not be renewed in time: the server does not ans"):
        await task


async def test_a_renewal_that_is_never_answered_counts_as_failed() -> None:
    world = World()

    class Silent(FaultyApi):
        async def patch(self, path: str, change: Mapping[str, Any]) -> client.Object:
            if change["spec"].get("acquireTime"):
                return await super().patch(path, change)
            world.time.now += 1
            await asyncio.Event().wait()
            raise AssertionError

    leader_lease = lease.Lease(Silent(), lease.Terms("system", "operator", "one", 1), world.time)
    await leader_lease.attempt()
    with pytest.raises(lease.Lost, match="could not be renewed in time: no answer"):
        await leader_lease.keep()


async def test_who_wakes_up_and_finds_another_has_lost() -> None:
    world = World()
    first, two = world.operator("one", seconds=1), world.operator("two", seconds=60)
    await first.attempt()
    await two.attempt()
    world.time.now += 1
    assert await two.attempt()
    with pytest.raises(lease.Lost, match="Lease operator is held by two now, not by us"):
        await first.keep()
