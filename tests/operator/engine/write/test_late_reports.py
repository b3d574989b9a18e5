"""Reports whose write takes long, fails, or meets another job."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from testing import clock, waiting
from testing.operator import memory_api, memory_cluster, objects
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.write import publisher
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
    api: Hanging, store: jobs.Jobs, time: clock.Clock
) -> AsyncIterator[publisher.Publisher]:
    writer = publisher.Publisher(api, store, time.utc, INTERVAL)
    task = asyncio.create_task(writer.run())
    yield writer
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_last_report_is_tried_again_however_late_its_error_comes() -> None:
    api, store, time = Hanging(), jobs.Jobs(queue.Queue()), clock.Clock()
    body = await api.create(resources.JOBS, "default", objects.job())
    store.apply_event("ADDED", body)
    async with writing(api, store, time) as writer:
        last = progress.Report(step=100, total_steps=100)
        writer.submit(publisher.Report(KEY, body["metadata"]["uid"], last, time.utc()))
        await waiting.idle()
        for after in (False, True):
            time.advance(2 * INTERVAL)
            memory_cluster.fire_due(writer._timers)
            await waiting.idle()
            assert api.steps == ([100] if after else [])
            api.answer.set()
            await waiting.idle()


async def test_a_recreated_job_never_gets_its_predecessors_report() -> None:
    api, store, time = Hanging(), jobs.Jobs(queue.Queue()), clock.Clock()
    api.hangs = False
    before = await api.create(resources.JOBS, "default", objects.job())
    store.apply_event("ADDED", before)
    api.remove(resources.JOBS.path("default", "digits"))
    await api.create(resources.JOBS, "default", objects.job())  # The watch has not seen it.
    async with writing(api, store, time) as writer:
        last = progress.Report(step=100, total_steps=100)
        writer.submit(publisher.Report(KEY, before["metadata"]["uid"], last, time.utc()))
        await waiting.idle()
        time.advance(INTERVAL)
        memory_cluster.fire_due(writer._timers)
        await waiting.idle()
    [job] = api.items(resources.JOBS)
    assert "status" not in job
