"""The API server in memory, an engine, and what tests play: the kubelet, the user, the clock.

Tests of decisions need `builders.World`; tests of an API server's own ways need
`namespaces.Namespace`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from testing import waiting
from testing.clock import Clock
from testing.operator import faults, memory_api, objects
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.core import installation
from tfparallel_operator.engine.observe import informer, records
from tfparallel_operator.engine.observe.children import ChildIndex
from tfparallel_operator.engine.observe.jobs import Jobs
from tfparallel_operator.engine.observe.sweeper import Sweeper
from tfparallel_operator.engine.run.workers import Workers
from tfparallel_operator.engine.telemetry.metrics import Metrics
from tfparallel_operator.engine.workqueue.queue import Key, Queue
from tfparallel_operator.engine.workqueue.timers import Timers
from tfparallel_operator.engine.write import dependencies


class SmallEngine:
    """Queue, informers, workers and timers, joined as the operator joins them."""

    def __init__(
        self,
        api: client.Client,
        time: Clock,
        may_write: Callable[[], None] = lambda: None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._api = api
        self._time = time
        self.rewinds = 0
        """How often the history of the API server has gone back."""
        self.queue: Queue[Key] = Queue()
        self.timers = Timers(self.queue.add, time.utc)
        self.metrics = Metrics()
        self.jobs = Jobs(self.queue, self.metrics.job_changed)
        self.children = ChildIndex(api, (), self._changed, time.utc)
        self.sweeper = Sweeper(api, self.jobs, ())
        of_jobs = installation.InstallationSettings(
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
        self.workers = Workers(engine)

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

    async def run_until_quiet(self, seconds: float = 10.0) -> None:
        """Run all tasks until they wait, advance the clock, and run them again."""
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
        self.queue.add(Key(owner.namespace, owner.name))


class MemoryCluster:
    """What outlives an engine; each `running` is a restarted operator.

    The requests of the engine meet the fault; those of the test do not.
    """

    def __init__(
        self,
        fault: faults.Fault | None = None,
        *,
        api: memory_api.MemoryApi | None = None,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.api = api or memory_api.MemoryApi()
        self.fault = fault
        self.may_write = may_write
        self.clock = Clock()
        self.settings: dict[str, Any] = {}
        """What the installation decides, beside the defaults of tests."""
        self.engine: SmallEngine

    @contextlib.asynccontextmanager
    async def running(self, job: dict[str, Any] | None = None) -> AsyncIterator[None]:
        """Run an engine; a job is created once it watches, for then it sees all of its life."""
        api = faults.FaultyApi(self.api, self.fault) if self.fault else self.api
        self.engine = SmallEngine(api, self.clock, self.may_write, self.settings)
        async with self.engine.running():
            if job is not None:
                await self.api.create(resources.JOBS, "default", job)
            await self.engine.run_until_quiet(seconds=0)
            yield

    async def start_pods(self, seconds: float = 0) -> None:
        """Start every pod that waits, after some time."""
        self.clock.advance(seconds)
        for pod in self.api.items(resources.PODS):
            if pod["status"]["phase"] == "Pending":
                self.api.write_status(pod, phase="Running", **objects.container(running={}))
        await self.engine.run_until_quiet(seconds=0)

    async def end(self, name: str, code: int, seconds: float = 0, message: str = "") -> None:
        """End a pod's container after some time, with a message, and let deleted pods go."""
        self.clock.advance(seconds)
        pod = self.api.object(resources.PODS.path("default", name))
        terminated = {"exitCode": code, "reason": "Error", "message": message}
        ended = objects.container(terminated=terminated)
        self.api.write_status(pod, phase="Failed" if code else "Succeeded", **ended)
        await self.let_go()

    async def end_source(self, name: str, code: int) -> None:
        """End a pod by the init container that fetches its source."""
        pod = self.api.object(resources.PODS.path("default", name))
        ended = {"terminated": {"exitCode": code, "reason": "Error"}}
        init = {"name": names.SOURCE_CONTAINER, "state": ended}
        self.api.write_status(pod, phase="Failed", initContainerStatuses=[init])
        await self.let_go()

    async def report(self, step: int, seconds: float) -> None:
        """Let a report of the coordinator arrive after some time."""
        await self._report("progress", {"step": step}, seconds)

    async def report_separate_training(self, seconds: float) -> None:
        """Let a replica report, after some time, that it trains a model of its own."""
        training = {"replica": "worker-0", "peers": 2, "method": "fit", "place": "train.py, line 3"}
        await self._report("separateTraining", training, seconds)

    async def report_large_model(self, seconds: float) -> None:
        """Let the coordinator report, after some time, that the model does not fit its devices."""
        memory = {"stage": 0, "peakBytes": 2, "deviceBytes": 1}
        await self._report("placement", {"mesh": {"data": 1}, "memory": memory}, seconds)

    async def _report(self, key: str, content: dict[str, Any], seconds: float) -> None:
        self.clock.advance(seconds)
        shown = {key: {**content, "lastUpdateTime": self.clock.utc().isoformat()}}
        path = resources.JOBS.path("default", "digits", "status")
        await self.api.apply(path, {"metadata": {}, "status": shown}, "tfparallel-progress")
        await self.engine.run_until_quiet(seconds=0)

    async def vanish(self, name: str) -> None:
        """Delete a pod by force."""
        self.api.remove(resources.PODS.path("default", name))
        await self.let_go()

    async def let_go(self) -> None:
        """End the pods that are being deleted, until nothing more happens."""
        await self.engine.run_until_quiet(seconds=0)
        self.api.let_go()
        await self.engine.run_until_quiet(seconds=0)

    async def change(self, **run_policy: Any) -> None:
        """Change the job's runPolicy."""
        path = resources.JOBS.path("default", "digits")
        await self.api.patch(path, {"spec": {"runPolicy": run_policy}})
        await self.let_go()

    @property
    def status(self) -> dict[str, Any]:
        [job] = self.api.items(resources.JOBS)
        return dict(job.get("status", {}))

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition of the job; empty when it has none of this type."""
        conditions = self.status.get("conditions", ())
        return dict(next((entry for entry in conditions if entry["type"] == kind), {}))

    @property
    def pods(self) -> tuple[client.Object, ...]:
        return self.api.items(resources.PODS)

    def events(self) -> list[tuple[str, str]]:
        """Type and reason of every Event, in the order of their creation."""
        events = sorted(
            self.api.items(resources.EVENTS),
            key=lambda item: int(item["metadata"]["resourceVersion"]),
        )
        return [(event["type"], event["reason"]) for event in events]


async def follow(followed: ChildIndex | informer.Informer[Any]) -> None:
    """Run all watches, until one fails."""
    async with asyncio.TaskGroup() as group:
        for name, watch in followed.watches():
            group.create_task(watch(), name=name)


def fire_due(alarm: Timers[Any]) -> None:
    """Fire every key whose time has come in virtual time, which the event loop does not know."""
    for key in tuple(alarm._times):
        alarm.check(key)
