"""Which reports are written, and when; what one that fails means for the others."""

import asyncio
import contextlib
import dataclasses
import datetime
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import hypothesis
import orjson
import pydantic
import pytest
from hypothesis import strategies

from testing import clock, waiting
from testing.operator import memory_api, memory_cluster, objects
from tfparallel_operator.api import load, names
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.write import publisher
from tfparallel_trainer.contract import limits, progress

NOW = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)


class Slow(memory_api.MemoryApi):
    """Counts what is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.failures: list[Exception] = []
        """What the next writes end with, the first one first."""
        self.stuck = ""
        """The namespace whose writes are not answered."""

    async def apply(self, path: str, manifest: Mapping[str, Any], manager: str) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        if self.stuck and f"/namespaces/{self.stuck}/" in path:
            await asyncio.Event().wait()
        assert manager == names.PROGRESS_FIELD_MANAGER
        self.steps.append(manifest["status"]["progress"]["step"])
        return await super().apply(path, manifest, manager)


INTERVAL = 10.0


@dataclasses.dataclass
class Desk:
    """A publisher on an API server in memory, in virtual time."""

    api: Slow
    writer: publisher.Publisher
    store: jobs.Jobs
    time: clock.Clock
    uid: str

    def report(
        self, step: int, uid: str | None = None, job: str = "digits", namespace: str = "default"
    ) -> None:
        received = progress.Report(step=step, total_steps=100)
        key = queue.Key(namespace, job)
        self.writer.submit(publisher.Report(key, uid or self.uid, received, NOW))

    async def add_job(self, name: str, namespace: str = "default") -> str:
        body = await self.api.create(resources.JOBS, namespace, objects.job(name))
        self.store.apply_event("ADDED", body)
        return str(body["metadata"]["uid"])

    async def start_attempt(self, number: int) -> None:
        path = resources.JOBS.path("default", "digits", "status")
        self.store.update(await self.api.patch(path, {"status": {"attempt": number}}))

    async def rest(self) -> None:
        """Let everything happen that can without more time."""
        await waiting.idle()

    async def pass_time(self, seconds: float) -> None:
        self.time.advance(seconds)
        memory_cluster.fire_due(self.writer._timers)
        await self.rest()


@contextlib.asynccontextmanager
async def _desk() -> AsyncIterator[Desk]:
    api, store, time = Slow(), jobs.Jobs(queue.Queue()), clock.Clock()
    body = await api.create(resources.JOBS, "default", objects.job())
    store.apply_event("ADDED", body)
    writer = publisher.Publisher(api, store, time.utc, INTERVAL)
    task = asyncio.create_task(writer.run())
    yield Desk(api, writer, store, time, body["metadata"]["uid"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_latest_report_is_written_when_the_interval_is_over() -> None:
    async with _desk() as desk:
        for step in (1, 2, 3):
            desk.report(step)
            await desk.rest()
        await desk.pass_time(INTERVAL - 1)
        assert desk.api.steps == [1]
        await desk.pass_time(1)
        assert desk.api.steps == [1, 3]
        await desk.pass_time(INTERVAL)
        desk.report(4)
        await desk.rest()
        assert desk.api.steps == [1, 3, 4]


async def test_the_report_of_the_last_step_does_not_wait() -> None:
    async with _desk() as desk:
        desk.report(99)
        await desk.rest()
        desk.report(100)
        await desk.rest()
        assert desk.api.steps == [99, 100]


async def test_a_report_that_could_not_be_written_is_written_later() -> None:
    async with _desk() as desk:
        desk.api.failures = [errors.Unavailable("busy")]
        desk.report(5)
        await desk.rest()
        assert desk.api.steps == []
        await desk.pass_time(INTERVAL)
        assert desk.api.steps == [5]


async def test_a_report_that_another_operator_has_overtaken_is_dropped() -> None:
    async with _desk() as desk:
        desk.report(1)
        await desk.rest()
        desk.report(2)
        later = {"step": 9, "lastUpdateTime": (NOW + datetime.timedelta(seconds=1)).isoformat()}
        path = resources.JOBS.path("default", "digits", "status")
        other = {"metadata": {}, "status": {"progress": later}}
        body = await memory_api.MemoryApi.apply(desk.api, path, other, "tfparallel-progress")
        desk.store.apply_event("MODIFIED", body)
        await desk.pass_time(INTERVAL)
        await desk.pass_time(INTERVAL)
        assert desk.api.steps == [1]
        desk.report(10)
        await desk.rest()
        assert desk.api.steps == [1, 10]


async def test_a_report_of_a_deleted_or_recreated_job_is_dropped() -> None:
    async with _desk() as desk:
        desk.report(5, uid="an earlier job's")
        await desk.pass_time(INTERVAL)
        desk.store.forget(queue.Key("default", "digits"), desk.uid)
        desk.report(6)
        await desk.pass_time(INTERVAL)
        assert desk.api.steps == []


@pytest.mark.parametrize("kind", [TypeError, errors.Invalid], ids=["a bug", "refused for good"])
async def test_a_report_that_can_never_be_written_is_dropped_and_others_go_on(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async with _desk() as desk:
        other = await desk.add_job("other")
        desk.api.failures = [kind("Integer exceeds 64-bit range") for _ in range(2)]
        for step in (5, 6):
            desk.report(step)
            await desk.pass_time(INTERVAL)
            await desk.pass_time(INTERVAL)
        desk.report(7, other, "other")
        await desk.rest()
        assert desk.api.steps == [7]
        desk.report(8)
        await desk.rest()
        assert desk.api.steps == [7, 8]
    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "the report is dropped" in line.getMessage()
    assert "Integer exceeds 64-bit range" in line.getMessage()
    assert line.exc_info is None


async def test_a_failure_that_lasts_is_logged_once_until_a_report_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _desk() as desk:
        for step in (5, 6):
            desk.api.failures = [errors.Refused("not now") for _ in range(3)]
            desk.report(step)
            for _ in range(4):
                await desk.pass_time(INTERVAL)
            assert desk.api.steps[-1] == step
    assert [record.getMessage() for record in caplog.records] == [
        "progress not written: not now; again in 10 s"
    ] * 2


async def test_jobs_of_a_namespace_whose_reports_are_slow_to_write_hold_up_no_other() -> None:
    async with _desk() as desk:
        desk.api.stuck = "slow"
        for number in range(2 * publisher.WRITERS):
            name = f"slow-{number}"
            desk.report(1, await desk.add_job(name, "slow"), name, "slow")
        await desk.rest()
        desk.report(7)
        await desk.rest()
        assert desk.api.steps == [7]


async def test_only_the_first_last_report_of_an_attempt_skips_the_pause() -> None:
    async with _desk() as desk:
        await desk.start_attempt(1)
        for _ in range(50):
            desk.report(99)
            desk.report(100)
            await desk.rest()
        assert desk.api.steps == [100, 100], "one at once, one for the end of the attempt"
        await desk.start_attempt(2)
        for _ in range(50):
            desk.report(100)
            await desk.rest()
        assert desk.api.steps == [100] * 3
        await desk.pass_time(INTERVAL)
        assert desk.api.steps == [100] * 4


async def test_nothing_is_kept_of_jobs_that_are_gone() -> None:
    async with _desk() as desk:
        for number in range(300):
            name = f"job-{number}"
            uid = await desk.add_job(name)
            desk.report(1, uid, name)
            await desk.rest()
            desk.store.forget(queue.Key("default", name), uid)
        assert len(desk.writer._mailboxes) <= 64


NUMBERS = strategies.one_of(
    strategies.integers(),
    strategies.sampled_from((-1, 0, limits.MAX_COUNT, limits.MAX_COUNT + 1, 2**53, 2**63, 2**64)),
)
TEXTS = strategies.text(max_size=70)
VALUES = strategies.one_of(NUMBERS, TEXTS, strategies.floats(), strategies.none())
REPORTS = strategies.fixed_dictionaries(
    {"step": strategies.one_of(strategies.integers(0, limits.MAX_COUNT), NUMBERS)},
    optional={
        "totalSteps": VALUES,
        "epoch": VALUES,
        "percent": VALUES,
        "eta": VALUES,
        "metrics": strategies.dictionaries(TEXTS, TEXTS, max_size=3),
    },
)


@hypothesis.given(REPORTS)
def test_what_the_contract_takes_can_be_sent_and_read_again(fields: dict[str, Any]) -> None:
    try:
        received = progress.Report.model_validate_json(json.dumps(fields))
    except pydantic.ValidationError:
        return
    report = publisher.Report(queue.Key("default", "digits"), "uid", received, NOW)
    sent = publisher.manifest(report)
    assert orjson.loads(orjson.dumps(sent)) == sent
    status = load.read_status(sent)
    assert status.progress is not None
    assert status.progress.step == received.step
