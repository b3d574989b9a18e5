"""The queue, timers, pauses after failures, and merge patches."""

import asyncio
import datetime
from typing import Any

import pytest

from testing import clock, waiting
from testing.operator import memory_cluster
from tfparallel_operator.engine.workqueue import queue, timers
from tfparallel_operator.engine.write import merge


async def test_a_key_waits_only_once() -> None:
    work: queue.Queue[str] = queue.Queue()
    for key in ("a", "b", "a", "a"):
        work.add(key)
    assert len(work) == 2
    assert [await work.get(), await work.get()] == ["a", "b"]


async def test_a_key_is_never_with_two_workers_and_comes_once_more() -> None:
    work: queue.Queue[str] = queue.Queue()
    work.add("a")
    assert await work.get() == "a"
    work.add("a")
    work.add("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await work.get()
    work.done("a")
    assert await work.get() == "a"
    work.done("a")
    assert len(work) == 0


async def test_a_flood_on_one_key_delays_no_other_key() -> None:
    work: queue.Queue[str] = queue.Queue(spacing=600.0)
    others = [f"other-{number}" for number in range(100)]
    order = []
    for other in ("flooded", *others):
        for _ in range(100):
            work.add("flooded")
        work.add(other)
        order.append(await work.get())
        work.done(order[-1])
    assert order == ["flooded", *others]
    assert len(work) == 1, "the flooded key comes once more, after its pause"


async def test_after_its_pause_a_key_comes_once_more() -> None:
    work: queue.Queue[str] = queue.Queue(spacing=0.01)
    work.add("a")
    assert await work.get() == "a"
    work.done("a")
    work.add("a")
    work.add("a")
    assert await work.get() == "a"
    work.done("a")
    assert len(work) == 0


async def test_a_pause_counts_in_the_age_of_a_key() -> None:
    time = clock.Clock()
    work: queue.Queue[str] = queue.Queue(clock=time, spacing=0.01)
    work.add("a")
    await work.get()
    work.done("a")
    work.add("a")
    time.now = 5.0
    await work.get()
    assert work.age("a") == 5.0


async def test_a_queue_that_nobody_works_on_takes_nothing_in() -> None:
    work: queue.Queue[str] = queue.Queue(opened=False)
    work.add("a")
    assert len(work) == 0
    assert work.oldest() == 0.0
    work.open(["b", "c"])
    work.add("b")
    assert [await work.get(), await work.get()] == ["b", "c"]
    assert len(work) == 2


async def test_a_key_of_low_priority_lets_others_go_first_for_a_while() -> None:
    time = clock.Clock()
    work: queue.Queue[str] = queue.Queue(clock=time)
    work.add("started")
    assert await work.get() == "started"
    work.add("started")
    work.done("started", served=False, low_priority=True)
    for key in ("new", "newer", "started"):
        work.add(key)
    assert len(work) == 3
    assert await work.get() == "new"
    time.now = queue.PATIENCE_SECONDS
    assert work.oldest() == queue.PATIENCE_SECONDS
    assert await work.get() == "started", "it has waited long enough"
    work.add("started")
    work.done("started")
    assert [await work.get(), await work.get()] == ["newer", "started"], "it has low priority once"


async def test_a_key_of_low_priority_waits_for_nobody_where_nobody_waits() -> None:
    work: queue.Queue[str] = queue.Queue()
    work.add("started")
    work.add(await work.get())
    work.done("started", served=False, low_priority=True)
    assert await work.get() == "started"


async def test_namespaces_take_turns_and_each_begins_with_the_key_that_waits_longest() -> None:
    work: queue.Queue[queue.Key] = queue.Queue()
    for namespace, name in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "2")):
        work.add(queue.Key(namespace, name))
    keys = [await work.get() for _ in range(5)]
    assert ["".join(key) for key in keys] == ["a1", "b1", "a2", "b2", "a3"]


async def test_a_namespace_leaves_a_worker_to_others() -> None:
    work: queue.Queue[queue.Key] = queue.Queue(most_of_namespace=2)
    for number in range(3):
        work.add(queue.Key("slow", str(number)))
    first, _ = await work.get(), await work.get()
    third = asyncio.create_task(work.get())
    await waiting.idle()
    assert not third.done(), "two of the namespace are worked on"
    work.add(queue.Key("other", "0"))
    assert await third == ("other", "0")
    fourth = asyncio.create_task(work.get())
    work.done(first)
    assert await fourth == ("slow", "2")


async def test_many_workers_see_every_key_and_none_at_the_same_time() -> None:
    work: queue.Queue[int] = queue.Queue()
    running: set[int] = set()
    keys: list[int] = []

    async def worker() -> None:
        while True:
            key = await work.get()
            assert key not in running
            running.add(key)
            await asyncio.sleep(0)
            keys.append(key)
            running.discard(key)
            work.done(key)

    workers = [asyncio.create_task(worker()) for _ in range(4)]
    for round_ in range(50):
        for key in range(5):
            work.add((key + round_) % 5)
        await asyncio.sleep(0)
    while len(work):
        await asyncio.sleep(0)
    for task in workers:
        task.cancel()
    outcomes = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert set(keys) == set(range(5))


async def test_a_worker_that_gives_up_waiting_takes_no_key_with_it() -> None:
    work: queue.Queue[str] = queue.Queue()
    worker = asyncio.create_task(work.get())
    await asyncio.sleep(0)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    work.add("a")
    assert await work.get() == "a"


async def test_the_age_of_the_oldest_key_counts_waiting_and_running() -> None:
    time = clock.Clock()
    work: queue.Queue[str] = queue.Queue(clock=time)
    assert work.oldest() == 0.0
    work.add("a")
    time.now = 5.0
    work.add("b")
    assert work.oldest() == 5.0
    await work.get()
    time.now = 9.0
    assert work.oldest() == 4.0


async def test_a_key_is_as_old_as_the_oldest_thing_that_no_look_has_served() -> None:
    time = clock.Clock()
    work: queue.Queue[str] = queue.Queue(clock=time)
    work.add("a")
    time.now = 2.0
    work.add("a")
    await work.get()
    assert work.age("a") == 2.0
    time.now = 3.0
    work.add("a")
    work.done("a")
    await work.get()
    time.now = 4.0
    assert work.age("a") == 1.0
    work.done("a", served=False)
    time.now = 7.0
    work.add("a")
    await work.get()
    assert work.age("a") == 4.0


async def test_a_timer_fires_at_the_earliest_of_its_times_and_once() -> None:
    time, fired = clock.Clock(), list[str]()
    start = time.utc()
    alarm = timers.Timers(fired.append, time.utc)
    alarm.set("a", start + datetime.timedelta(seconds=10))
    alarm.set("a", start + datetime.timedelta(seconds=5))
    alarm.set("a", start + datetime.timedelta(seconds=20))
    alarm.after("b", 7)
    for seconds, expected in ((4, []), (1, ["a"]), (100, ["a", "b"]), (100, ["a", "b"])):
        time.advance(seconds)
        memory_cluster.fire_due(alarm)
        assert fired == expected


async def test_a_timer_fires_by_itself() -> None:
    done = asyncio.Event()
    alarm: timers.Timers[str] = timers.Timers(lambda _: done.set())
    alarm.after("far", 1000)
    alarm.after("near", 0.02)
    async with asyncio.timeout(60):
        await done.wait()


async def test_a_timer_notices_that_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "LONGEST_SLEEP_SECONDS", 0.01)
    time, fired = clock.Clock(), asyncio.Event()
    alarm: timers.Timers[str] = timers.Timers(lambda _: fired.set(), time.utc)
    alarm.after("a", 1000)
    time.advance(1000)
    async with asyncio.timeout(60):
        await fired.wait()


async def test_times_that_no_longer_count_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, handles = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def record(*arguments: Any) -> asyncio.TimerHandle:
        handles.append(call_later(*arguments))
        return handles[-1]

    monkeypatch.setattr(loop, "call_later", record)
    time, fired = clock.Clock(), list[str]()
    alarm = timers.Timers(fired.append, time.utc)
    for seconds in range(1_000, 0, -1):
        for key in ("a", "b"):
            alarm.after(key, seconds)
    assert [handle.cancelled() for handle in handles].count(False) == 2
    time.advance(1)
    memory_cluster.fire_due(alarm)
    assert sorted(fired) == ["a", "b"]


def test_pauses_double_up_to_five_minutes_and_begin_again_after_success() -> None:
    backoff = timers.Backoff(draw=lambda: 1.0)
    pauses = [backoff.count_failure() for _ in range(11)]
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert pauses[9:] == [300.0, 300.0]
    backoff.reset()
    assert backoff.count_failure() == 1.0


def test_pauses_are_spread_over_the_upper_half() -> None:
    assert timers.Backoff(draw=lambda: 0.0).count_failure() == 0.5


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {}, {}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {}, {"a": None}),
        ({}, {"a": 1}, {"a": 1}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": {"b": 1}}, {"a": {"b": 1}, "d": [1]}, {"d": [1]}),
        ({"a": [1, 2]}, {"a": [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ({}, {"a": {}}, {"a": {}}),
    ],
)
def test_a_merge_patch_holds_only_what_differs(
    old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert merge.difference(old, new) == patch
