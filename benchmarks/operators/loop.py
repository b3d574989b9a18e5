"""How long the event loop is blocked while jobs run to their end, and while huge ones begin."""

import asyncio
import dataclasses
import functools
import os
import pathlib
import signal
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from benchmarks import results
from benchmarks.operators import arena, contestants, load, starts, steady
from testing.cluster import settings
from tfparallel_operator.api import names

HUGE: Mapping[str, Mapping[str, Any]] = {
    "plain": starts.TRAINER,
    "ModelSplit": starts.SPLIT,
    "topologyKeys": {**starts.TRAINER, "scheduling": {"topologyKeys": ["zone", "rack"]}},
    "ParameterServer": {**starts.TRAINER, "strategy": "ParameterServer"},
    "hostNetwork": {**starts.TRAINER, "network": "Open", "hostNetwork": True},
    "gang": {**starts.TRAINER, "scheduling": {"gang": "Coscheduling"}},
    "queue": starts.TRAINER,
}
"""Jobs of every kind. The cluster has no gang scheduler and no queues, so the last two wait."""

SERVERS = 10

WAITING = ("gang", "queue")


def measure(size: results.Size) -> list[results.Result]:
    """Run all jobs several times, each time with a fresh operator."""
    with arena.cluster("benchmark-loop", settings.Light()) as cluster:
        contestants.OURS.install(cluster)
        with tempfile.TemporaryDirectory() as name:
            site = contestants.Place(cluster, "benchmark", pathlib.Path(name))
            return asyncio.run(rows(site, size))


async def rows(site: contestants.Place, size: results.Size) -> list[results.Result]:
    """Measure on a cluster without nodes."""
    report = site.folder / "report.json"
    ours = contestants.watched(report)
    runs: dict[str, Callable[[], Awaitable[object]]] = {
        f"{size.jobs} jobs of {size.replicas} pods run": functools.partial(
            starts.sample, ours, site, size.jobs, size.replicas
        ),
        f"one of {size.large} runs": functools.partial(starts.sample, ours, site, 1, size.large),
    }
    for kind in HUGE:
        run = functools.partial(_start_jobs, kind, ours, site, size.huge)
        runs[f"one of {size.huge} begins, {kind}"] = run
    return [
        await steady.longest_block(when, run, report, size.repeats) for when, run in runs.items()
    ]


async def _start_jobs(
    kind: str, watched: contestants.Contestant, site: contestants.Place, workers: int
) -> None:
    """Apply a job of this kind; return when all its pods exist, or why they do not."""
    labels = {names.LABEL_QUEUE: "queue"} if kind == "queue" else {}
    ours = dataclasses.replace(watched, spec=_spec(kind, workers), labels=labels)
    async with load.opened(site.cluster, site.namespace) as opened:
        work = load.Load(opened, ours)
        async with contestants.running(ours, site) as running:
            os.kill(running.pid, signal.SIGUSR1)  # What its start took is not asked here.
            if kind in WAITING:
                await work.create(["huge"], workers)
                await work.until_all(["huge"], "CreationRefused")
            else:
                await work.start(["huge"], workers)
        await asyncio.to_thread(work.wipe)


def _spec(kind: str, workers: int) -> Mapping[str, Any]:
    """The job's spec; its batch has an example for each replica."""
    roles = contestants.OURS.job(kind, workers)["spec"]["tfReplicaSpecs"]
    if kind == "ParameterServer":
        roles["PS"] = {**roles["Worker"], "replicas": SERVERS}
    trainer = {**starts.TRAINER["trainer"], "globalBatchSize": workers}
    return {**HUGE[kind], "trainer": trainer, "tfReplicaSpecs": roles}
