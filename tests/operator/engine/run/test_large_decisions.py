"""A decision on a large job holds up no other job, and is made once at a time."""

import contextlib
import dataclasses
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testing import clock, waiting
from testing.operator import faults, memory_api, memory_cluster, objects
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core import decide, decision
from tfparallel_operator.engine.run import large_jobs

LARGE = large_jobs.LARGE_JOB + 1


class Gate:
    """Lets a decision on a large job through when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.queued = 0
        """Decisions on large jobs that have begun and not ended."""
        self._decide = decide.decide
        monkeypatch.setattr(decide, "decide", self.pass_through)

    def pass_through(self, job: Any, *arguments: Any) -> decision.Decision:
        if sum(job.counts.values()) < LARGE:
            return self._decide(job, *arguments)
        self.queued += 1
        assert self.open.wait(waiting.LIMIT_SECONDS)
        self.queued -= 1
        return self._decide(job, *arguments)


@contextlib.asynccontextmanager
async def _running(gate: Gate) -> AsyncIterator[memory_api.MemoryApi]:
    api = memory_api.MemoryApi()
    engine = memory_cluster.SmallEngine(api, clock.Clock())
    async with engine.running():
        try:
            yield api
            gate.open.set()
            await engine.run_until_quiet(seconds=0)
        finally:
            gate.open.set()


async def _until_decided_on(gate: Gate) -> None:
    await waiting.until_in_loop(lambda: gate.queued == 1, "the decision on the large job has begun")


def _pods(api: memory_api.MemoryApi, job: str) -> int:
    names = [pod["metadata"]["name"] for pod in api.items(resources.PODS)]
    return sum(name.startswith(f"{job}-") for name in names)


async def test_other_jobs_go_on_during_a_decision_on_a_large_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    async with _running(gate) as api:
        await api.create(resources.JOBS, "default", objects.job("large", LARGE))
        await _until_decided_on(gate)
        await api.create(resources.JOBS, "default", objects.job("small", 2))
        await waiting.until_in_loop(lambda: _pods(api, "small") == 3, "the small job has its pods")
        assert (gate.queued, _pods(api, "large")) == (1, 0)
    assert _pods(api, "large") == LARGE + 1


async def test_a_job_that_changes_during_its_decision_is_decided_on_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    async with _running(gate) as api:
        await api.create(resources.JOBS, "default", objects.job("large", LARGE))
        await _until_decided_on(gate)
        path = resources.JOBS.path("default", "large")
        await api.patch(path, {"spec": {"runPolicy": {"suspend": True}}})
        await waiting.idle()
        assert gate.queued == 1, "one worker for a job"
    assert _pods(api, "large") == 0
    [job] = api.items(resources.JOBS)
    assert job["status"]["state"] == "Suspended"


class Manifest(dict[str, Any]):
    """A manifest that weak references can name."""


async def test_a_look_that_fails_leaves_no_manifest_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)  # A captured record keeps the error that it names.
    looks: list[list[weakref.ref[Manifest]]] = []
    decide_for_real = decide.decide

    def track(*arguments: Any) -> decision.Decision:
        decided = decide_for_real(*arguments)
        creations = [Manifest(manifest) for manifest in decided.creations]
        looks.append([*map(weakref.ref, creations)])
        return dataclasses.replace(decided, creations=tuple(creations))

    monkeypatch.setattr(decide, "decide", track)
    refusal = faults.Refusal("^create .*/pods/", errors.Unavailable("the API server is away"))
    cluster = MemoryCluster(refusal)
    async with cluster.running(objects.job("large", LARGE)):
        await cluster.engine.run_until_quiet(seconds=30)
        await cluster.engine.run_until_quiet(seconds=30)
        assert refusal.count >= 3
        first, second, *_ = filter(None, looks)  # A decision on a refusal creates nothing.
        assert len(first) + len(second) > 2 * LARGE

        def forgotten() -> bool:
            gc.collect()
            return not any(reference() for reference in (*first, *second))

        # A look may still end, and may decide twice; a leak lasts.
        await waiting.until_in_loop(forgotten, "no manifest of the first two looks is left")
