"""Two operators on a real API server: one acts, and the other takes over when it ends."""

import asyncio
import contextlib
import pathlib
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client import parser

from testing import waiting
from testing.operator import (
    faults,
    namespaces,
    objects,
    operator_process,
    outage,
    progress_site,
)
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api_server import client, credentials, resources, streams
from tfparallel_operator.core.pods import config
from tfparallel_operator.engine import handlers
from tfparallel_operator.engine.run import engine, lease
from tfparallel_operator.engine.telemetry import metrics

LEASE = "operator"
ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")
LONG_SECONDS = 600
"""Time of a lease that no load makes run out. Who stands by with it looks every 80 s."""
STANDING_BY_SECONDS = 90
"""Time of a lease that no load makes run out within a few steps of a test."""


async def _holder(namespace: Namespace) -> str:
    lease_object = await namespace.api.get(resources.LEASES.path(namespace.name, LEASE))
    return str(lease_object["spec"].get("holderIdentity"))


async def _until_held(namespace: Namespace, holder: str) -> None:
    async def is_held() -> bool:
        listing = await namespace.api.list(resources.LEASES, namespace.name)
        return bool(listing.items) and await _holder(namespace) == holder

    await waiting.until_async(is_held, f"{holder} holds the lease", 3 * waiting.LIMIT_SECONDS)


async def _end_lease(namespace: Namespace) -> None:
    """Let the lease of an operator that was killed run out; it was long, so that no load did."""
    path = resources.LEASES.path(namespace.name, LEASE)
    await namespace.api.patch(path, {"spec": {"leaseDurationSeconds": 1}})


async def _metrics(operator: operator_process.OperatorProcess) -> dict[str, float]:
    """What an operator shows, without what it shows for each of something."""
    _, text = await operator.probe("/metrics")
    families = parser.text_string_to_metric_families(text)
    return {s.name: s.value for family in families for s in family.samples if not s.labels}


def _environment(namespace: Namespace, number: int, seconds: int, **more: str) -> dict[str, str]:
    """The environment of one of two operators."""
    return {
        **namespace.variables,
        "POD_NAME": f"operator-{number}",
        "TFPARALLEL_LEASE": LEASE,
        "TFPARALLEL_LEASE_SECONDS": str(seconds),
        **more,
    }


async def _report_to(namespace: Namespace, port: int, step: int) -> None:
    """Report progress at one operator, and wait until the job shows it."""
    path = resources.CONFIG_MAPS.path(namespace.name, "digits-tfparallel")
    authorities = (await namespace.api.get(path))["data"][config.CA_FILE_KEY]
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authorities))
    async with aiohttp.ClientSession(connector=connector) as http:
        site = progress_site.Site(namespace, port, http)
        token = await site.token("digits-chief-0", await site.audience())

        async def taken() -> bool:
            return await site.send(token, {"step": step, "totalSteps": 100}) == (202, "")

        await waiting.until_async(taken, "the report is taken")

    await namespace.until_status(
        f"step {step} is shown", lambda now: now.get("progress", {}).get("step") == step
    )


async def test_one_acts_both_are_ready_and_take_progress_and_who_ends_is_followed(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    listening = ports.allocate(2)

    def settings_of(number: int, seconds: int) -> dict[str, str]:
        progress = {
            "TFPARALLEL_PROGRESS_HOST": progress_site.HOST,
            "TFPARALLEL_PROGRESS_PORT": str(listening[number]),
        }
        return _environment(namespace, number, seconds, **progress)

    async with (
        namespace.creations() as created,
        operator_process.running(settings_of(0, LONG_SECONDS), tmp_path / "0.log") as first,
    ):
        await first.until_ready()
        await _until_held(namespace, "operator-0")
        async with operator_process.running(settings_of(1, 60), tmp_path / "1.log") as second:
            for operator in (first, second):
                await operator.until_ready()
            await namespace.create_job()
            await namespace.run_pods(*ALL)
            acting, standing = [await _metrics(operator) for operator in (first, second)]
            assert (acting["tfparallel_leader"], standing["tfparallel_leader"]) == (1, 0)
            assert acting["tfparallel_jobs_started_total"] == 1
            assert standing["tfparallel_jobs_started_total"] == 0
            assert standing["tfparallel_queue_depth"] == 0
            await _report_to(namespace, listening[1], 40)
            await _report_to(namespace, listening[0], 50)
            first.process.send_signal(signal.SIGTERM)
            # The lease of the first would last for ten minutes: it lets go of it.
            await _until_held(namespace, "operator-1")
            assert await first.process.wait() == 0
            await namespace.end("digits-worker-0", 1)
            await namespace.run_pods(*ALL, attempt=2)
            await namespace.end("digits-chief-0", 0)
            status = await namespace.until_state("Succeeded")
    assert status["restarts"] == {"failure": 1, "disruption": 0}
    assert sorted(created) == [(pod, attempt, "0") for pod in ALL for attempt in ("1", "2")]


async def test_an_operator_that_loses_the_lease_ends(namespace: Namespace) -> None:
    settings = namespace.settings(lease=LEASE, instance="operator-0", lease_seconds=15)
    task = asyncio.create_task(handlers.run(engine.Engine(settings), asyncio.Event()))
    await _until_held(namespace, "operator-0")
    stolen = {"holderIdentity": "operator-1", "renewTime": "2026-11-21T10:00:00.000000Z"}
    await namespace.api.patch(resources.LEASES.path(namespace.name, LEASE), {"spec": stolen})
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            await task
    await asyncio.sleep(namespaces.CLOSE_SECONDS)
    assert caught.value.subgroup(lease.Lost) is not None
    assert await _holder(namespace) == "operator-1"


async def _versions(namespace: Namespace) -> dict[str, str]:
    """The versions of the job, its pods and its Events: any write changes one."""
    listings = [
        await namespace.api.list(resource, namespace.name)
        for resource in (resources.JOBS, resources.PODS, resources.EVENTS)
    ]
    items = (item["metadata"] for listing in listings for item in listing.items)
    return {item["uid"]: item["resourceVersion"] for item in items}


async def test_an_operator_that_was_paused_past_its_lease_writes_nothing_when_it_wakes(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    async with (
        namespace.creations() as created,
        operator_process.running(_environment(namespace, 0, 15), tmp_path / "0.log") as first,
    ):
        await first.until_ready()
        await _until_held(namespace, "operator-0")
        await namespace.create_job()
        await namespace.run_pods(*ALL)
        async with operator_process.running(
            _environment(namespace, 1, STANDING_BY_SECONDS), tmp_path / "1.log"
        ) as second:
            await second.until_ready()
            first.process.send_signal(signal.SIGSTOP)
            await _until_held(namespace, "operator-1")
            await namespace.end("digits-worker-0", 1)
            await namespace.run_pods(*ALL, attempt=2)
            second.process.send_signal(signal.SIGSTOP)  # So that all writes are of the first.
            before = await _versions(namespace)
            first.process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(waiting.LIMIT_SECONDS):
                assert await first.process.wait() != 0
            assert await _versions(namespace) == before
            assert f"Lease {LEASE}" in first.log
            second.process.send_signal(signal.SIGCONT)
            await namespace.end("digits-chief-0", 0)
            await namespace.until_state("Succeeded")
    assert sorted(created) == [(pod, attempt, "0") for pod in ALL for attempt in ("1", "2")]


@contextlib.asynccontextmanager
async def _second(
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    wrap: Callable[[client.Client], client.Client] = lambda api: api,
) -> AsyncIterator[metrics.Metrics]:
    """A second operator, in this process, that stands by and looks at the lease every 0.5 s."""
    monkeypatch.setattr(lease, "TRIES", 120)
    stop = asyncio.Event()
    settings = namespace.settings(lease=LEASE, instance="operator-1", lease_seconds=60)
    async with client.Client(credentials.find(settings.kubeconfig)) as api:
        second = engine.Engine(settings, wrap(api))
        task = asyncio.create_task(handlers.run(second, stop))

        def standing_by() -> bool:
            leads = second.metrics.registry.get_sample_value("tfparallel_leader")
            return leads == 0 and not second.missing()

        try:
            await waiting.until_in_loop(standing_by, "the second stands by")
            yield second.metrics
        finally:
            stop.set()
            await task
            await asyncio.sleep(namespaces.CLOSE_SECONDS)


async def test_a_leader_that_is_killed_while_it_starts_a_job_is_followed_by_the_other(
    namespace: Namespace, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = 60
    pod_names = ["digits-chief-0", *(f"digits-worker-{index}" for index in range(workers))]
    async with (
        namespace.creations() as created,
        operator_process.running(
            _environment(namespace, 0, LONG_SECONDS), tmp_path / "0.log"
        ) as first,
    ):
        await first.until_ready()
        await _until_held(namespace, "operator-0")
        async with _second(namespace, monkeypatch):
            await namespace.create_job(objects.job(workers=workers))
            await waiting.until_in_loop(lambda: created, "the first of its pods is there")
            first.process.kill()
            await _end_lease(namespace)
            await _until_held(namespace, "operator-1")
            await namespace.run_pods(*pod_names)
            await namespace.end("digits-chief-0", 0)
            status = await namespace.until_state("Succeeded")
    assert status["attempt"] == 1
    assert status["restarts"] == {"failure": 0, "disruption": 0}
    assert sorted(created) == sorted((pod, "1", "0") for pod in pod_names)


class Deaf(faults.FaultyApi):
    """A client whose watch of pods tells nothing, as one whose connection has died unnoticed."""

    async def watch(
        self, resource: resources.Resource, *arguments: Any, **more: Any
    ) -> AsyncIterator[streams.WatchEvent]:
        if resource == resources.PODS:
            await asyncio.Event().wait()
        async for event in super().watch(resource, *arguments, **more):
            yield event


def _deafen(api: client.Client) -> Deaf:
    return Deaf(api, faults.Fault())


async def test_a_new_leader_does_not_trust_its_watches(
    namespace: Namespace, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with operator_process.running(
        _environment(namespace, 0, LONG_SECONDS), tmp_path / "0.log"
    ) as first:
        await first.until_ready()
        await _until_held(namespace, "operator-0")
        async with _second(namespace, monkeypatch, _deafen) as counted:
            await namespace.create_job()
            await namespace.run_pods(*ALL)
            uids = {pod["metadata"]["uid"] for pod in (await namespace.pods()).values()}
            first.process.kill()
            await _end_lease(namespace)
            await _until_held(namespace, "operator-1")
            looks = ("tfparallel_reconcile_duration_seconds_count", {"outcome": "done"})
            await waiting.until_in_loop(
                lambda: counted.registry.get_sample_value(*looks),
                "the second has looked at the job",
            )
    status = await namespace.status()
    assert (status["state"], status["attempt"]) == ("Running", 1)
    assert {pod["metadata"]["uid"] for pod in (await namespace.pods()).values()} == uids


async def test_an_api_server_that_is_killed_and_comes_back_is_survived(
    namespace: Namespace,
) -> None:
    async with namespace.operator(lease=LEASE, instance="operator-0", lease_seconds=LONG_SECONDS):
        await _until_held(namespace, "operator-0")
        await namespace.create_job()
        await namespace.run_pods(*ALL)
        uids = {name: pod["metadata"]["uid"] for name, pod in (await namespace.pods()).items()}
        await asyncio.to_thread(outage.restart, namespace.cluster)
        # Gone before the operator watches again, or soon after: it must notice in both cases.
        # The version that its watch has come to is too old for the new API server.
        lost = "digits-worker-1"
        async with namespace.creations() as created:
            await namespace.api.delete(resources.PODS, namespace.name, lost, uids[lost], force=True)
            await namespace.run_pods(*ALL, attempt=2)
            await namespace.end("digits-chief-0", 0)
            status = await namespace.until_state("Succeeded")
    assert status["restarts"] == {"failure": 0, "disruption": 1}
    assert sorted(created) == [(pod, "2", "0") for pod in ALL]
