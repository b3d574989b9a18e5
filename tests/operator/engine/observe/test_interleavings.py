"""Whatever the order of pages, events and answers, what is known ends as what etcd holds."""

import asyncio
import contextlib
import itertools
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import hypothesis
import pytest
import yarl
from hypothesis import strategies

from testing import waiting
from testing.operator import memory_cluster, objects, rewinding_api
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.engine.observe import children, informer, jobs, records, sweeper
from tfparallel_operator.engine.run import history
from tfparallel_operator.engine.telemetry import metrics
from tfparallel_operator.engine.workqueue import queue

NAMES = [f"digits-worker-{index}" for index in range(5)]

Step = tuple[str, str, int]
"""What happens, to which object, and how many turns of the event loop follow, or how many writes
before the API server is back."""

ACTIONS = ("answered", "delete", "list", "end", "save", "restore", "replace")

STEPS = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(
            (
                "write",
                "write",
                "write",
                "answered",
                "delete",
                "list",
                "end",
                "save",
                "restore",
                "replace",
            )
        ),
        strategies.sampled_from(NAMES),
        strategies.integers(0, 8),
    ),
    max_size=40,
)


class Story:
    """Carries the steps out at an API server in memory."""

    def __init__(
        self, api: rewinding_api.RewindingApi, resource: resources.Resource, document: Any
    ) -> None:
        self._api = api
        self._resource = resource
        self._document = document
        self._copy = api.save()

    async def take(
        self,
        step: Step,
        answered: Callable[[dict[str, Any]], None],
        refresh: Callable[[], Any],
    ) -> None:
        """Carry a step out, and let time pass."""
        action, name, turns = step
        match action:
            case "save":
                self._copy = self._api.save()
            case "restore":
                await self._api.restore(self._copy, lambda: self._write_often(turns))
            case "replace":
                self._api.replace(self._copy)
                await waiting.idle()
            case "end":
                self._api.end_watches()
            case "list":
                refresh()
            case "delete":
                with contextlib.suppress(KeyError):
                    self._api.remove(self._resource.path("default", name))
            case "write":
                await self._write(name)
            case "answered":
                answered(await self._write(name))
        for _ in range(turns):
            await asyncio.sleep(0)

    async def _write(self, name: str) -> dict[str, Any]:
        path = self._resource.path("default", name)
        if path in self._api._objects:
            return await self._api.patch(path, {"metadata": {"annotations": {"a": "b"}}})
        return await self._api.create(self._resource, "default", self._document(name))

    async def _write_often(self, times: int) -> None:
        for name in itertools.islice(itertools.cycle(NAMES), times):
            await self._write(name)

    def stored_versions(self) -> dict[str, str]:
        """The versions of the objects that etcd holds."""
        items = self._api.items(self._resource)
        return {i["metadata"]["name"]: i["metadata"]["resourceVersion"] for i in items}


@contextlib.asynccontextmanager
async def _tasks() -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks: list[asyncio.Task[Any]] = []
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(history, "AGAIN_SECONDS", 0.0)


async def _quietly(call: Any) -> None:
    with contextlib.suppress(errors.ApiError):
        await call


async def _follow_pods(steps: list[Step], seed: int) -> None:
    api = rewinding_api.RewindingApi(seed)
    story = Story(api, resources.PODS, objects.pod)
    pods = informer.Informer(
        api,
        resources.PODS,
        (),
        lambda item: (item["metadata"]["name"], item["metadata"]["resourceVersion"]),
        lambda _: None,
    )
    async with _tasks() as tasks:
        tasks.append(asyncio.create_task(memory_cluster.follow(pods)))
        for step in steps:
            await story.take(
                step,
                pods.learn,
                lambda: tasks.append(asyncio.create_task(_quietly(pods.refresh()))),
            )
        await waiting.idle()
        assert (
            dict(pods.for_owner(records.Owner("default", "digits", objects.UID)))
            == story.stored_versions()
        )


async def _follow_jobs(steps: list[Step], seed: int) -> None:
    api = rewinding_api.RewindingApi(seed)
    story = Story(api, resources.JOBS, objects.job)
    store = jobs.Jobs(queue.Queue())
    swept = sweeper.Sweeper(api, store, (), lambda: past.rewind())
    followed = children.ChildIndex(api, (), lambda _: None)
    counted = metrics.Metrics()
    past = history.History(followed, swept, counted)
    await swept.sweep()
    async with _tasks() as tasks:
        tasks.append(asyncio.create_task(past.run()))
        tasks.append(asyncio.create_task(_watch_as_kopf(api, store, past)))
        for step in steps:
            await story.take(
                step,
                store.update,
                lambda: tasks.append(asyncio.create_task(_quietly(swept.sweep()))),
            )
        await waiting.idle()
        past.check()
        noticed = counted.registry.get_sample_value("tfparallel_history_rewinds_total")
        assert past.rewinds == noticed
    versions = {b["metadata"]["name"]: b["metadata"]["resourceVersion"] for b in store.bodies()}
    assert versions == story.stored_versions()


async def _watch_as_kopf(
    api: rewinding_api.RewindingApi, store: jobs.Jobs, past: history.History
) -> None:
    """Follow jobs as kopf does, which continues from the last version that it has seen."""
    url = yarl.URL("https://host") / resources.JOBS.path().removeprefix("/")
    version = "0"

    async def handle(request: Any) -> Any:
        if api.is_away:
            raise aiohttp.ClientConnectionError("no answer")
        return request

    while True:
        request: Any = types.SimpleNamespace(
            url=url.with_query(watch="true", resourceVersion=version)
        )
        with contextlib.suppress(aiohttp.ClientError, errors.Unavailable):
            await past.resume(request, handle)
            first = request.url.query["resourceVersion"]
            async for event in api.watch(resources.JOBS, None, first):
                version = event.object["metadata"]["resourceVersion"]
                store.apply_event(event.type, event.object)
        await asyncio.sleep(0)


UNSEEN = [("write", NAMES[4], 8), ("save", NAMES[0], 8), ("write", NAMES[4], 8)]
"""A write that the restore after it undoes."""

of_any_story = hypothesis.given(steps=STEPS, seed=strategies.integers(0, 2**16))
of_restores = [
    hypothesis.example(steps=[*UNSEEN, ("replace", NAMES[0], 8)], seed=1),
    hypothesis.example(steps=[*UNSEEN, ("restore", NAMES[0], 4)], seed=1),
]


@of_any_story
@of_restores[0]
@of_restores[1]
@hypothesis.settings(deadline=None)
def test_children_are_known_as_they_are(steps: list[Step], seed: int) -> None:
    asyncio.run(_follow_pods(steps, seed))


@of_any_story
@of_restores[0]
@of_restores[1]
@hypothesis.settings(deadline=None)
def test_jobs_are_known_as_they_are(steps: list[Step], seed: int) -> None:
    asyncio.run(_follow_jobs(steps, seed))
