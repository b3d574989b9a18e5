"""Reports whose write takes long, fails, or meets another job; times that no longer count."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from testing.operator import memory_api, objects, small_engine
from tfparallel_operator.engine import errors, jobs, publisher, queue, resources, timers
from tfparallel_trainer.contract import progress

KEY = queue.Key("default", "digits")
INTERVAL = 5.0


class Hanging(memory_api.MemoryApi):
    """Answers the first report late, and with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()
        self.hangs = True
        self.steps: list[int] = []

    async def apply(self, path: str, manifest: Mapping[str, Any], manager: str) -> dict[str, Any]:
        if self.hangs:
            await self.answer.wait()
            self.hangs = False
            raise errors.Unavailable("late")
        answer = await super().apply(path, manifest, manager)
        self.steps.append(manifest["status"]["progress"]["step"])
        return answer


@contextlib.asynccontextmanager
async def writing(
    api: Hanging, known: jobs.Jobs, clock: small_engine.Clock
) -> AsyncIterator[publisher.Publisher]:
    writer = publisher.Publisher(api, known, clock, INTERVAL)
    task = asyncio.create_task(writer.run())
    yield writer
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def rest() -> None:
    for _ in range(small_engine.STILL):
        await asyncio.sleep(0)


async def test_the_last_report_is_tried_again_however_late_its_error_comes() -> None:
    api, known, clock = Hanging(), jobs.Jobs(queue.Queue()), small_engine.Clock()
    body = await api.create(resources.JOBS, "default", objects.job())
    known.watched("ADDED", body)
    async with writing(api, known, clock) as writer:
        last = progress.Report(step=100, total_steps=100)
        writer.submit(publisher.Report(KEY, body["metadata"]["uid"], last, clock()))
        await rest()
        for after in (False, True):
            clock.advance(2 * INTERVAL)
            writer._timers.fire_due()
            await rest()
            assert api.steps == ([100] if after else [])
            api.answer.set()
            await rest()


async def test_a_job_that_was_made_anew_never_gets_its_predecessors_report() -> None:
    api, known, clock = Hanging(), jobs.Jobs(queue.Queue()), small_engine.Clock()
    api.hangs = False
    before = await api.create(resources.JOBS, "default", objects.job())
    known.watched("ADDED", before)
    api.remove(resources.JOBS.path("default", "digits"))
    await api.create(resources.JOBS, "default", objects.job())  # The watch has not told of it.
    async with writing(api, known, clock) as writer:
        last = progress.Report(step=100, total_steps=100)
        writer.submit(publisher.Report(KEY, before["metadata"]["uid"], last, clock()))
        await rest()
        clock.advance(INTERVAL)
        writer._timers.fire_due()
        await rest()
    [job] = api.items(resources.JOBS)
    assert "status" not in job


def test_times_that_no_longer_count_leave_the_heap() -> None:
    clock = small_engine.Clock()
    fired: list[str] = []
    alarm = timers.Timers(fired.append, clock)
    for seconds in range(10_000, 0, -1):
        for key in ("a", "b"):
            alarm.after(key, seconds)
    assert len(alarm._heap) < 100
    clock.advance(1)
    alarm.fire_due()
    assert sorted(fired) == ["a", "b"]
