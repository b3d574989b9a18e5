"""The Lease: one holder at a time, whatever the API server and the clocks do."""

import asyncio
from typing import Any

import pytest

from testing import clock, waiting
from testing.operator import faults, memory_api
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.engine.run import lease

SECONDS = 15
WITHIN = SECONDS * lease.RENEWED_WITHIN


class LeaseWorld:
    """An API server and operators with one clock, which is that of no machine."""

    def __init__(self, fault: faults.Fault | None = None) -> None:
        self.api = memory_api.MemoryApi()
        self.refusal = faults.Refusal("^patch ")
        self.time = clock.Clock(1000)
        self._client = faults.FaultyApi(self.api, fault or self.refusal)

    def operator(self, name: str, seconds: int = SECONDS) -> lease.Lease:
        terms = lease.Terms("system", "operator", name, seconds)
        return lease.Lease(self._client, terms, clock=self.time)

    @property
    def spec(self) -> dict[str, Any]:
        [stored_lease] = self.api.items(resources.LEASES)
        return dict(stored_lease["spec"])

    async def write(self, **spec: Any) -> None:
        await self.api.patch(resources.LEASES.path("system", "operator"), {"spec": spec})


async def test_the_first_makes_the_lease_and_the_second_waits() -> None:
    world = LeaseWorld()
    first, second = world.operator("one"), world.operator("two")
    assert await first.attempt()
    assert not await second.attempt()
    first.check()
    with pytest.raises(lease.Lost, match="Lease operator has another holder"):
        second.check()
    assert world.spec["holderIdentity"] == "one"
    assert world.spec["leaseDurationSeconds"] == SECONDS
    assert world.spec["leaseTransitions"] == 0
    assert world.spec["acquireTime"] == world.spec["renewTime"]
    assert len(world.spec["renewTime"]) == len("2026-11-21T10:00:00.000000Z")


async def test_of_two_at_the_same_time_one_gets_it() -> None:
    world = LeaseWorld()
    both = [world.operator("one"), world.operator("two")]
    assert sorted([await operator.attempt() for operator in both]) == [False, True]
    results = await asyncio.gather(*(operator.attempt() for operator in both))
    assert sorted(results) == [False, True]


async def test_a_holder_that_renews_is_left_alone_and_one_that_does_not_is_replaced() -> None:
    world = LeaseWorld()
    first, second = world.operator("one"), world.operator("two")
    await first.attempt()
    for _ in range(5):
        assert not await second.attempt()
        world.time.now += SECONDS - 1
        assert await first.attempt()
    assert not await second.attempt()
    world.time.now += SECONDS - 1
    assert not await second.attempt()
    world.time.now += 1
    assert await second.attempt()
    assert (world.spec["holderIdentity"], world.spec["leaseTransitions"]) == ("two", 1)
    assert not await first.attempt()


async def test_a_holder_stops_before_another_may_begin() -> None:
    world = LeaseWorld()
    first, second = world.operator("one"), world.operator("two")
    await first.attempt()
    await second.attempt()
    world.time.now += WITHIN - 0.1
    first.check()
    world.time.now += 0.1
    with pytest.raises(lease.Lost):
        first.check()
    assert not await second.attempt()


async def test_the_time_that_counts_is_the_holders() -> None:
    world = LeaseWorld()
    first, second = world.operator("one", seconds=60), world.operator("two", seconds=3)
    await first.attempt()
    assert not await second.attempt()
    world.time.now += 59
    assert not await second.attempt()
    world.time.now += 1
    assert await second.attempt()


async def test_an_operator_that_is_started_again_in_its_pod_goes_on_at_once() -> None:
    world = LeaseWorld()
    await world.operator("one").attempt()
    again = world.operator("one")
    assert await again.attempt()
    again.check()
    assert world.spec["leaseTransitions"] == 0


async def test_who_lets_go_is_followed_at_once() -> None:
    world = LeaseWorld()
    first, second = world.operator("one"), world.operator("two")
    await first.attempt()
    assert not await second.attempt()
    await second.release()
    assert world.spec["holderIdentity"] == "one"
    await world.write(renewTime="2026-11-21T10:00:00.000000Z")  # its own, whose answer it lost
    await first.release()
    assert "holderIdentity" not in world.spec
    with pytest.raises(lease.Lost):
        first.check()
    assert await second.attempt()
    assert world.spec["leaseTransitions"] == 1


@pytest.mark.parametrize("fault", [errors.Unavailable("down"), errors.NotFound("gone")])
async def test_a_lease_that_cannot_be_let_go_ends_by_itself(fault: Exception) -> None:
    world = LeaseWorld()
    first, second = world.operator("one"), world.operator("two")
    await first.attempt()
    await second.attempt()
    world.refusal.following = [fault]
    await first.release()
    world.time.now += SECONDS
    assert await second.attempt()


async def test_a_lease_that_somebody_edits_or_deletes_is_still_held() -> None:
    world = LeaseWorld()
    holder = world.operator("one")
    await holder.attempt()
    await world.write(strategy="OldestEmulationVersion")
    assert await holder.attempt()
    world.api.remove(resources.LEASES.path("system", "operator"))
    assert await holder.attempt()
    assert world.spec["holderIdentity"] == "one"


async def test_without_the_right_to_make_the_lease_the_sentence_says_what_is_missing() -> None:
    world = LeaseWorld(
        faults.Refusal("^create ", errors.Refused("leases is forbidden", status=403))
    )
    with pytest.raises(errors.Refused, match="Lease operator is not in namespace system and may"):
        await world.operator("one").acquire()


async def test_waiting_for_the_lease_goes_on_while_the_api_server_is_away() -> None:
    world = LeaseWorld()
    holder = world.operator("one", seconds=1)
    world.refusal.following = [errors.Unavailable("down"), errors.Unavailable("down")]
    await holder.acquire()
    assert not world.refusal.following
    holder.check()


async def test_a_renewal_is_tried_again_while_there_is_time() -> None:
    world = LeaseWorld()
    holder = world.operator("one", seconds=1)
    await holder.attempt()
    before = world.spec["renewTime"]
    world.refusal.following = [errors.Unavailable("down"), errors.Conflict("changed", status=409)]
    task = asyncio.create_task(holder.keep())
    await waiting.until_in_loop(
        lambda: not world.refusal.following and world.spec["renewTime"] != before, "the renewal"
    )
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_cannot_renew_in_time_has_lost() -> None:
    world = LeaseWorld()
    holder = world.operator("one", seconds=1)
    await holder.attempt()
    world.refusal.error = errors.Unavailable("the server does not answer")
    task = asyncio.create_task(holder.keep())
    await waiting.until_in_loop(lambda: world.refusal.count, "a renewal is refused")
    world.time.now += 1
    with pytest.raises(lease.Lost, match=r"could not be renewed in time: the server does not ans"):
        await task


async def test_a_renewal_that_is_never_answered_counts_as_failed() -> None:
    class Silence(faults.Fault):
        async def write(self, request: str, send: faults.Send[faults.T]) -> faults.T:
            if is_taken:
                world.time.now += 1
                await asyncio.Event().wait()
            return await send()

    is_taken, world = False, LeaseWorld(Silence())
    holder = world.operator("one", seconds=1)
    is_taken = await holder.attempt()
    with pytest.raises(lease.Lost, match="could not be renewed in time: no answer"):
        await holder.keep()


async def test_who_wakes_up_and_finds_another_has_lost() -> None:
    world = LeaseWorld()
    first, second = world.operator("one", seconds=1), world.operator("two", seconds=60)
    await first.attempt()
    await second.attempt()
    world.time.now += 1
    assert await second.attempt()
    with pytest.raises(lease.Lost, match="Lease operator is held by two now, not by us"):
        await first.keep()
