"""Ten thousand pods on KWOK's nodes, whose jobs end and begin: memory, delay, the event loop."""

import asyncio
import collections
import dataclasses
import json
import pathlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import parser

from benchmarks import results
from benchmarks.operators import arena, contestants, load, usage
from testing import waiting
from testing.cluster import settings

NODES = 4
MEMORY_TARGET, DELAY_TARGET, BLOCK_TARGET = 130.0, 1.0, 50.0
QUANTILE = 0.99
DELAY = "tfparallel_status_delay_seconds"


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What has been used and counted at a moment."""

    moment: float
    operator: float
    """Seconds of CPU time."""
    api_server: float
    delays: Mapping[float, float]
    """Writes of a status that came within so many seconds after the event they were for."""


class Churn:
    """Jobs that run under one operator; the oldest end, and others begin."""

    def __init__(self, work: load.Load, running: contestants.Running, workers: int) -> None:
        self._work = work
        self._running = running
        self._workers = workers
        self._created = 0
        self._jobs: collections.deque[str] = collections.deque()

    async def fill(self, jobs: int) -> None:
        """Create jobs, and wait until all of them run."""
        for _ in range(jobs):
            await self._start_job()
        await self.until_running(jobs)

    async def until_running(self, jobs: int) -> None:
        """Wait until the operator counts so many jobs that run."""

        async def reached() -> bool:
            await asyncio.sleep(0.5)
            return await states(self._running, "Running") == jobs

        await waiting.until_async(reached, f"{jobs} jobs run", load.LIMIT_SECONDS)

    async def go_on(self, seconds: float, rate: float) -> None:
        """End and begin so many jobs in a second."""
        begun = time.monotonic()
        for number in range(round(seconds * rate)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            await self._work.end([self._jobs.popleft()], self._workers)
            await self._start_job()

    async def until_each_runs(self) -> None:
        """Wait until each job that is left runs, as its status says."""
        await self._work.until_all(self._jobs, "Running")

    async def _start_job(self) -> None:
        name = f"job-{self._created}"
        node = f"gpu-node-{self._created % NODES}"
        self._created += 1
        await self._work.create(
            [name], self._workers, node, cleanPodPolicy="All", ttlSecondsAfterFinished=0
        )
        self._jobs.append(name)


async def states(running: contestants.Running, state: str) -> int:
    """How many jobs the operator counts in a state."""
    for family in parser.text_string_to_metric_families(
        await asyncio.to_thread(running.read, "/metrics")
    ):
        for sample in family.samples:
            if sample.name == "tfparallel_jobs" and sample.labels["state"] == state:
                return int(sample.value)
    return 0


async def counts(running: contestants.Running, api_server: int) -> Counts:
    """Read them."""
    text = await asyncio.to_thread(running.read, "/metrics")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    delays = {
        float(sample.labels["le"]): sample.value
        for sample in families[DELAY].samples
        if sample.name == f"{DELAY}_bucket"
    }
    used = usage.cpu_seconds(running.pid), usage.cpu_seconds(api_server)
    return Counts(time.monotonic(), *used, delays)


def quantile(share: float, before: Counts, after: Counts) -> tuple[float, int]:
    """The seconds within which this share of writes came, as Prometheus reads it from buckets.

    Returns:
        These seconds, and the number of writes.
    """
    delays = [(bound, after.delays[bound] - before.delays[bound]) for bound in sorted(after.delays)]
    total = delays[-1][1]
    lower, below = 0.0, 0.0
    for bound, number in delays:
        if number >= share * total and number > below:
            within = (share * total - below) / (number - below)
            return (bound if bound == float("inf") else lower + within * (bound - lower)), int(
                total
            )
        lower, below = bound, number
    raise ValueError("No status was written in the time that was measured.")


def measure(size: results.Size) -> list[results.Result]:
    """Fill a cluster, let jobs end and begin, and start the operator once more beside them."""
    control_plane = settings.Light(controllers=True, nodes=NODES)
    with arena.cluster("benchmark-steady", control_plane) as cluster:
        contestants.OURS.install(cluster)
        with tempfile.TemporaryDirectory() as name:
            site = contestants.Place(cluster, "benchmark", pathlib.Path(name))
            return asyncio.run(rows(site, size))


async def rows(site: contestants.Place, size: results.Size) -> list[results.Result]:
    """Measure on a cluster with nodes."""
    pods = size.many * size.replicas
    server = arena.api_server(site.cluster)
    async with load.opened(site.cluster, site.namespace) as opened:
        work = load.Load(opened, contestants.OURS)
        async with contestants.running(contestants.OURS, site) as running:
            churn = Churn(work, running, size.replicas)
            await churn.fill(size.many)
            resident, most = usage.resident(running.pid), usage.most_resident(running.pid)
            before = await counts(running, server)
            await churn.go_on(size.seconds, rate=1.0)
            await churn.until_each_runs()
            after = await counts(running, server)
        report = site.folder / "again.json"

        async def start() -> None:
            async with contestants.running(contestants.watched(report), site) as again:
                await Churn(work, again, size.replicas).until_running(size.many)

        when = f"an operator starts next to {pods} pods"
        block = await longest_block(when, start, report, size.repeats)
    return [
        results.Result(
            f"resident memory with {pods} pods",
            MEMORY_TARGET,
            results.Bound.AT_MOST,
            resident,
            " MB",
            f"{most:.0f} MB at most since its start, before the jobs",
        ),
        _delay(size, before, after),
        block,
    ]


def _delay(size: results.Size, before: Counts, after: Counts) -> results.Result:
    seconds, writes = quantile(QUANTILE, before, after)
    interval = after.moment - before.moment
    server = 100 * (after.api_server - before.api_server) / interval
    operator = 100 * (after.operator - before.operator) / interval
    return results.Result(
        f"99 % of statuses written after their event, {size.many} jobs of {size.replicas} pods",
        DELAY_TARGET,
        results.Bound.AT_MOST,
        seconds,
        " s",
        f"{writes} writes in {interval:.0f} s in which a job a second ended and another began; "
        f"processor: API server {server:.0f} %, operator {operator:.0f} % of a core",
    )


async def longest_block(
    when: str, run: Callable[[], Awaitable[object]], report: pathlib.Path, repeats: int
) -> results.Result:
    """The row for an operator that is watched in each of some runs, and writes this report.

    A block of the operator's is in all of them, and one of the machine's in some.
    """
    reports = []
    for _ in range(repeats):
        await run()
        reports.append(json.loads(report.read_text()))
    reports.sort(key=lambda report: report["longest"])
    least, most = reports[0], reports[-1]
    return results.Result(
        f"longest block of the event loop while {when}",
        BLOCK_TARGET,
        results.Bound.AT_MOST,
        1000 * least["longest"],
        " ms",
        f"of {least['callbacks']} callbacks, in `{least['where']}`; up to"
        f" {1000 * most['longest']:.0f} ms in {repeats} runs; longest garbage collection"
        f" {1000 * least['collection']:.0f} ms",
    )
