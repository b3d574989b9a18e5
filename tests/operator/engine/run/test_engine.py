"""The group of tasks, probes and log lines."""

import asyncio
import collections
import json
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import exposition

from testing import clock, waiting
from testing.operator import faults, memory_api, memory_cluster, objects
from tfparallel_operator.api_server import client, errors, resources, streams
from tfparallel_operator.engine import handlers
from tfparallel_operator.engine.observe import children, sweeper
from tfparallel_operator.engine.run import engine, parts, probes, settings
from tfparallel_operator.engine.telemetry import logs
from tfparallel_operator.engine.workqueue import queue

UNKNOWN = errors.NotFound("the server could not find the requested resource")


def _failing(plural: str, error: Exception, *, once: bool = False) -> client.Client:
    """An API server in memory that does not list these objects."""
    refusal = faults.Refusal(f"^list .*/{plural}$", None if once else error, [error][: int(once)])
    return faults.FaultyApi(memory_api.MemoryApi(), refusal)


def _engine(api: client.Client) -> engine.Engine:
    return engine.Engine(settings.Settings("trainer:test", health_port=0), api)


@pytest.mark.usefixtures("processes")  # the operator listens on all interfaces
async def test_the_operator_ends_where_the_custom_resource_is_missing() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await _engine(_failing("tfparalleljobs", UNKNOWN)).start()
    assert caught.value.split(sweeper.NotInstalled)[0] is not None


@pytest.mark.usefixtures("processes")  # the operator listens on all interfaces
async def test_a_part_that_fails_once_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "PAUSES_SECONDS", (0.0, 0.0))
    operator_engine = _engine(_failing("pods", ZeroDivisionError("a bug"), once=True))
    await operator_engine.start()
    assert operator_engine.missing() == ""
    shown = exposition.generate_latest(operator_engine.metrics.registry).decode()
    assert 'tfparallel_part_failures_total{part="children"} 1.0' in shown
    assert "the part 'children (pods)' failed" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text
    await operator_engine.stop()


@pytest.mark.usefixtures("processes")  # the operator listens on all interfaces
async def test_a_part_that_always_fails_leaves_the_others_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "PAUSES_SECONDS", (0.0, 0.01))
    operator_engine = _engine(_failing("pods", ZeroDivisionError("a bug")))
    start = asyncio.create_task(operator_engine.start())

    async def is_named() -> bool:
        return "the part 'children (pods)' has failed" in operator_engine.missing()

    await waiting.until_async(is_named, "the part is named")
    assert not start.done()
    assert operator_engine.problem() == ""
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)


class HalfApi(memory_api.MemoryApi):
    """Each watch of pods of one namespace ends in an error that no part expects."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: collections.Counter[tuple[resources.Resource, str | None]] = (
            collections.Counter()
        )

    async def watch(
        self, resource: resources.Resource, namespace: str | None, *more: Any, **named: Any
    ) -> AsyncIterator[streams.WatchEvent]:
        self.watches[resource, namespace] += 1
        if (resource, namespace) == (resources.PODS, "bad"):
            raise ZeroDivisionError("a bug")
        async for event in super().watch(resource, namespace, *more, **named):
            yield event


@pytest.mark.usefixtures("processes")  # the operator listens on all interfaces
async def test_an_informer_that_always_fails_leaves_all_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "PAUSES_SECONDS", (0.0, 0.01))
    api = HalfApi()
    options = settings.Settings("trainer:test", health_port=0, watch_namespaces=("bad", "good"))
    operator_engine = engine.Engine(options, api)
    await operator_engine.start()
    await waiting.until_in_loop(
        lambda: api.watches[resources.PODS, "bad"], "it fails again and again", when=(10).__le__
    )
    assert "'children (pods in bad)' has failed" in operator_engine.missing()
    del api.watches[resources.PODS, "bad"]
    assert (resources.PODS, "good") in api.watches
    assert (resources.CONFIG_MAPS, "bad") in api.watches
    assert {*api.watches.values()} == {1}
    await operator_engine.stop()


class StuckApi(memory_api.MemoryApi):
    """Answers no write of a namespace."""

    async def create(
        self, resource: resources.Resource, namespace: str | None, *more: Any, **named: Any
    ) -> client.Object:
        if namespace == "slow" and resource != resources.JOBS:
            await asyncio.Event().wait()
        return await super().create(resource, namespace, *more, **named)


@pytest.mark.usefixtures("processes")  # the operator listens on all interfaces
@pytest.mark.parametrize("workers", [1, 4])
async def test_jobs_of_a_namespace_that_are_slow_to_write_hold_up_no_other(workers: int) -> None:
    api = StuckApi()
    for number in range(2 * workers):
        await api.create(resources.JOBS, "slow", objects.job(f"slow-{number}"))
    await api.create(resources.JOBS, "default", objects.job())
    operator_settings = settings.Settings("trainer:test", health_port=0, workers=workers)
    operator_engine = engine.Engine(operator_settings, api)
    await operator_engine.start()

    async def has_pods() -> bool:
        return bool((await api.list(resources.PODS, "default")).items)

    await waiting.until_async(has_pods, "the other job has pods")
    await operator_engine.stop()


@pytest.mark.usefixtures("processes")  # the operator listens on all interfaces
async def test_a_start_waits_for_an_api_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "ASK_AGAIN_SECONDS", 0.0)
    refusal = faults.Refusal(
        "^list .*/tfparalleljobs$", following=[errors.Unavailable("no answer")]
    )
    api = faults.FaultyApi(memory_api.MemoryApi(), refusal)
    operator_engine = _engine(api)
    await operator_engine.start()
    assert operator_engine.missing() == ""
    assert refusal.count == 1
    await operator_engine.stop()


@pytest.mark.usefixtures("processes")  # the operator listens on all interfaces
async def test_a_start_that_fails_leaves_kopf_nothing_to_wait_for() -> None:
    stop = asyncio.Event()
    with pytest.raises(ExceptionGroup) as caught:
        await handlers.run(_engine(_failing("tfparalleljobs", UNKNOWN)), stop)
    assert caught.value.split(sweeper.NotInstalled)[0] is not None
    assert stop.is_set()


def test_a_line_for_people_shows_control_characters() -> None:
    record = _record()
    record.msg, record.args = "refused: %s", ("\x1b[2J\x9b",)
    assert r"refused: \x1b[2J\x9b" in logs.TextFormatter().format(record)


async def test_a_part_that_returns_is_named() -> None:
    async def returning() -> None:
        return None

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            parts.spawn(group, "watch", returning())
    assert "the operator's part 'watch' has ended" in str(caught.value.exceptions[0])


async def test_a_silent_informer_and_a_stuck_worker_are_not_healthy() -> None:
    time = clock.Clock()
    work: queue.Queue[queue.Key] = queue.Queue(clock=time)
    job_children = children.ChildIndex(memory_api.MemoryApi(), (), lambda _: None)
    assert probes.healthy(job_children, work) == ""
    work.add(queue.Key("default", "digits"))
    await work.get()
    time.now = probes.KEY_LIMIT_SECONDS + 1
    assert "one been busy with one, for 601 s" in probes.healthy(job_children, work)
    assert probes.ready(job_children, jobs_listed=True) == (
        "the children of the jobs have not been listed yet"
    )


async def test_jobs_that_wait_for_their_turn_make_no_operator_unhealthy() -> None:
    time = clock.Clock()
    work: queue.Queue[queue.Key] = queue.Queue(clock=time)
    job_children = children.ChildIndex(memory_api.MemoryApi(), (), lambda _: None)
    for number in range(3):
        work.add(queue.Key("default", f"slow-{number}"))
    for seconds in (400.0, 800.0):
        time.now = seconds
        work.done(await work.get())
        assert probes.healthy(job_children, work) == ""
    assert work.oldest() == 800.0
    time.now += probes.KEY_LIMIT_SECONDS + 1
    assert "no worker has taken a job that waits" in probes.healthy(job_children, work)


async def test_an_informer_that_neither_hears_nor_tries_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job_children = children.ChildIndex(memory_api.MemoryApi(), (), lambda _: None)
    monkeypatch.setattr(probes, "SILENCE_LIMIT_SECONDS", -1.0)
    assert probes.healthy(job_children, queue.Queue()).startswith(
        "no event, bookmark or attempt of a"
    )


async def test_the_operator_is_ready_when_children_and_jobs_have_been_listed() -> None:
    job_children = children.ChildIndex(memory_api.MemoryApi(), (), lambda _: None)
    task = asyncio.create_task(memory_cluster.follow(job_children))
    await job_children.wait_synced()
    assert probes.ready(job_children, jobs_listed=False) == "the jobs have not been listed yet"
    assert probes.ready(job_children, jobs_listed=True) == ""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _record() -> logging.LogRecord:
    try:
        raise ValueError("what went wrong")
    except ValueError:
        caught = sys.exc_info()
    return logging.LogRecord("engine", logging.WARNING, "x.py", 1, "%s ready", ("2/3",), caught)


def test_a_json_line_carries_the_job_and_the_traceback() -> None:
    with logs.about(job="digits", reconcile="1f2e"), logs.about(attempt=2):
        line = json.loads(logs.JsonFormatter().format(_record()))
    assert (line["level"], line["message"]) == ("warning", "2/3 ready")
    assert (line["job"], line["attempt"], line["reconcile"]) == ("digits", 2, "1f2e")
    assert "namespace" not in line
    assert "ValueError: what went wrong" in line["exception"]


async def test_what_a_line_is_about_goes_along_into_tasks_and_ends_with_its_block() -> None:
    async def line() -> dict[str, object]:
        await asyncio.sleep(0)
        record: dict[str, object] = json.loads(logs.JsonFormatter().format(_record()))
        return record

    with logs.about(job="one"):
        first = asyncio.create_task(line())
    with logs.about(job="two"):
        second = asyncio.create_task(line())
    assert [(await task)["job"] for task in (first, second)] == ["one", "two"]
    assert "job" not in await line()


def test_a_line_for_people_carries_the_same() -> None:
    with logs.about(job="digits", namespace="training"):
        text = logs.TextFormatter().format(_record())
    first, *others = text.splitlines()
    assert first.endswith("WARNING namespace=training job=digits 2/3 ready")
    assert others[-1] == "ValueError: what went wrong"
