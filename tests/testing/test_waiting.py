"""The helper that waits says what did not come, and the clock moves only when it is told to."""

import asyncio
import itertools
import threading

import pytest

from testing import clock, waiting


def test_the_value_that_ends_the_wait_is_returned() -> None:
    numbers = itertools.count()
    assert waiting.until(lambda: next(numbers), "one", poll=0) == 1
    assert waiting.until(lambda: next(numbers), "five", when=lambda n: n >= 5, poll=0) == 5


async def test_the_value_of_a_coroutine_is_returned() -> None:
    numbers = itertools.count()

    async def following() -> int:
        return next(numbers)

    assert await waiting.until_async(following, "one", poll=0) == 1
    assert await waiting.until_async(following, "five", when=(5).__eq__, poll=0) == 5


def test_a_wait_in_vain_says_for_what_and_the_last_value() -> None:
    with pytest.raises(waiting.TimedOutError, match=r"^Not within 0 s: a pod\. Last value: \{\}"):
        waiting.until(dict, "a pod", 0)


async def test_other_tasks_go_on_while_a_plain_condition_is_awaited() -> None:
    event = asyncio.Event()
    task = asyncio.create_task(event.wait())
    asyncio.get_running_loop().call_soon(event.set)
    assert await waiting.until_in_loop(task.done, "the end of a task")


def test_a_wait_in_vain_ends_at_once_with_the_reason() -> None:
    with pytest.raises(waiting.TimedOutError, match=r"^In vain: a line\. It has ended$"):
        waiting.until(bool, "a line", 0.0, in_vain=lambda: "It has ended")


def test_the_last_act_before_the_end_is_seen() -> None:
    """The end is looked at first: whatever came before it is there at the next look."""
    lines: list[str] = []

    def end() -> str:
        lines.append("last")
        return "It has ended"

    assert waiting.until(lambda: lines, "a line", in_vain=end) == ["last"]


async def test_a_condition_that_never_answers_is_cancelled() -> None:
    async def hung() -> bool:
        return await asyncio.Event().wait()

    with pytest.raises(waiting.TimedOutError, match=r"an answer\. Last value: None"):
        await waiting.until_async(hung, "an answer", 0.01)


def test_an_error_of_the_condition_ends_the_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        waiting.until(lambda: 1 / 0, "nothing")


async def test_a_wait_for_idleness_covers_all_that_follows() -> None:
    steps: list[int] = []

    async def chain(number: int) -> None:
        steps.append(number)
        if number < 100:
            await asyncio.create_task(chain(number + 1))
        await asyncio.Event().wait()

    task = asyncio.create_task(chain(1))
    await waiting.idle()
    assert steps == list(range(1, 101))
    task.cancel()


def test_the_clock_moves_only_when_it_is_advanced() -> None:
    time = clock.Clock(5)
    assert (time(), time.monotonic()) == (5, 5)
    time.advance(60)
    assert time() == 65
    assert time.utc().isoformat() == "2026-11-21T10:01:05+00:00"
    assert time.reads == 4


def test_an_advance_returns_after_another_thread_has_read_the_clock() -> None:
    time, ended = clock.Clock(), threading.Event()
    times: list[float] = []

    def read() -> None:
        while not ended.is_set():
            times.append(time())

    thread = threading.Thread(target=read)
    thread.start()
    time.advance(1, reads=2)
    assert times[-1] == 1
    ended.set()
    thread.join()
