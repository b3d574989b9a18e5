"""Killing the operator after any write of a status, on a real API server and with kopf."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from testing import waiting
from testing.operator import faults, namespaces
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import client, credentials
from tfparallel_operator.engine import handlers
from tfparallel_operator.engine.run import engine

ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")
STATUS = tuple(("patch", "/status", number) for number in range(1, 12))
"""The job begins, its pods are seen and three start: twice; it succeeds, and its pods are gone."""

REST = (
    *(("create", "", number) for number in (3, 5, 9)),
    *(("delete", "", number) for number in (1, 3, 4)),
)
"""A sample of the other writes: the test in memory has them all."""

ALWAYS = {1, 2, 5, 8, 11}
"""Kills that the short suite has: the begin, a start, a restart, and the end."""


class Supervisor:
    """Runs the operator, and restarts it when it was killed, as a Deployment does."""

    def __init__(self, namespace: Namespace, begin: str, end: str, crash: int) -> None:
        self._namespace = namespace
        self._begin = begin
        self._end = end
        self._crash: int | None = crash
        self._ended = False
        self._stop = asyncio.Event()
        self.kills = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._ended = True
            self._stop.set()
            await task

    async def _run(self) -> None:
        while not self._ended:
            self._stop = asyncio.Event()
            settings = self._namespace.settings()
            async with client.Client(credentials.find(settings.kubeconfig)) as api:
                crash = faults.Crash(self._crash, self._begin, self._end)
                mortal = faults.FaultyApi(api, crash)
                try:
                    await handlers.run(engine.Engine(settings, mortal), self._stop)
                except* faults.Killed:
                    self.kills += 1
                    self._crash = None
            await asyncio.sleep(namespaces.CLOSE_SECONDS)


@pytest.mark.parametrize(
    ("begin", "end", "crash"),
    [
        pytest.param(*kill, marks=() if kill[2] in ALWAYS else pytest.mark.long)
        for kill in (*STATUS, *REST)
    ],
)
async def test_a_kill_after_a_write_leads_to_the_same_end(
    begin: str, end: str, crash: int, namespace: Namespace
) -> None:
    supervisor = Supervisor(namespace, begin, end, crash)
    async with namespace.creations() as created, supervisor.running():
        await namespace.create_job()
        await _start_one_by_one(namespace, 1)
        await namespace.end("digits-worker-0", 1)
        await _start_one_by_one(namespace, 2)
        await namespace.end("digits-chief-0", 0)
        status = await namespace.until_state("Succeeded")
        await namespace.until_pods("digits-chief-0", attempt=2)
        await waiting.until_in_loop(lambda: supervisor.kills == 1, "the operator was killed")
    assert status["attempt"] == 2
    assert status["restarts"] == {"failure": 1, "disruption": 0}
    assert sorted(created) == [(pod, attempt, "0") for pod in ALL for attempt in ("1", "2")]


async def _start_one_by_one(namespace: Namespace, attempt: int) -> None:
    """Start the pods of an attempt; the operator writes of each."""
    await namespace.until_pods(*ALL, attempt=attempt)
    await _until_ready(namespace, 0)
    for number, pod in enumerate(ALL, 1):
        await namespace.kubelet(pod, "Running", running={})
        await _until_ready(namespace, number)
    await namespace.until_state("Running")


async def _until_ready(namespace: Namespace, count: int) -> None:
    ready = f"{count}/{len(ALL)}"
    await namespace.until_status(f"{ready} are ready", lambda now: now.get("ready") == ready)
