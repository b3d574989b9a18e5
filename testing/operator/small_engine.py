"""The engine without kopf and without a network, on an API server in memory, in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from testing import clock, waiting
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.core import installation
from tfparallel_operator.engine.observe import children, informer, jobs, records, sweeper
from tfparallel_operator.engine.run import workers
from tfparallel_operator.engine.telemetry import metrics
from tfparallel_operator.engine.workqueue import queue, timers
from tfparallel_operator.engine.write import dependencies


class SmallEngine:
    """Queue, informers, workers and timers, joined as the operator joins them."""

    def __init__(
        self,
        api: client.Client,
        time: clock.Clock,
        may_write: Callable[[], None] = lambda: None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._api = api
        self._time = time
        self.rewinds = 0
        """How often the history of the API server has gone back."""
        self.queue: queue.Queue[queue.Key] = queue.Queue()
        self.timers = timers.Timers(self.queue.add, time.utc)
        self.metrics = metrics.Metrics()
        self.jobs = jobs.Jobs(self.queue, self.metrics.job_changed)
        self.children = children.Children(api, (), self._changed, time.utc)
        self.sweeper = sweeper.Sweeper(api, self.jobs, ())
        of_jobs = installation.Settings(
            trainer_image="trainer:test",
            gangs=installation.Gangs(),
            queues=True,
            **(settings or {}),
        )
        engine = dependencies.Dependencies(
            api,
            self.jobs,
            self.children,
            self.queue,
            self.timers,
            self.metrics,
            of_jobs,
            "test",
            may_write,
            time.utc,
            lambda: self.rewinds,
        )
        self.workers = workers.Workers(engine)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["SmallEngine"]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(follow(self.children))]
            await self.children.wait_synced()
            listing = await self._api.list(resources.JOBS, None)
            self.jobs.add_page(listing.items, int(listing.version))
            tasks.append(group.create_task(self._follow(listing.version)))
            tasks += [group.create_task(self.workers.run()) for _ in range(2)]
            yield self
            for task in tasks:
                task.cancel()

    async def settle(self, seconds: float = 10.0) -> None:
        """Let everything happen that follows by itself, then let time pass, and again."""
        await self._quiet()
        self._time.advance(seconds)
        fire_due(self.timers)
        await self._quiet()

    async def _quiet(self) -> None:
        await waiting.idle()
        while len(self.queue):  # a worker waits for time
            await waiting.idle()

    async def _follow(self, version: str) -> None:
        async for event in self._api.watch(resources.JOBS, None, version):
            self.jobs.apply_event(event.type, event.object)

    def _changed(self, owner: records.Owner) -> None:
        self.queue.add(queue.Key(owner.namespace, owner.name))


async def follow(followed: children.Children | informer.Informer[Any]) -> None:
    """Run all watches, until one fails."""
    async with asyncio.TaskGroup() as group:
        for name, watch in followed.watches():
            group.create_task(watch(), name=name)


def fire_due(alarm: timers.Timers[Any]) -> None:
    """Fire every key whose time has come in virtual time, which the event loop does not know."""
    for key in tuple(alarm._times):
        alarm.check(key)
