"""An operator that is attacked, and other jobs meanwhile: delay, Lease, memory, probes."""

import asyncio
import contextlib
import dataclasses
import datetime
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from benchmarks import results
from benchmarks.operators import contestants, load, usage
from tfparallel_operator.api_server import resources

LEASE = "operator"
LEASE_SECONDS = 15
FLOODED = "flooded"
RATE = 5.0
"""Events of the other jobs in a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttackSample:
    """What was seen in some seconds."""

    delays: Sequence[float]
    """Seconds from each event of another job until its status showed it."""
    writes: Sequence[float]
    """Seconds that the API server took for each event itself."""
    watch_delays: Sequence[float]
    """Seconds from the sending of each event until a plain watch heard of it."""
    renewals: Sequence[datetime.datetime]
    """When the Lease was renewed, by the operator's clock."""

    @property
    def delay(self) -> float:
        """The delay that 99 % of the events did not exceed."""
        return _quantile(self.delays)

    @property
    def write(self) -> float:
        """The time of the API server that 99 % of the events did not exceed."""
        return _quantile(self.writes)

    @property
    def hearing(self) -> float:
        """The time until a plain watch heard of an event that 99 % of the events did not exceed."""
        return _quantile(self.watch_delays)

    @property
    def longest_gap(self) -> float:
        """Seconds from one renewal to the next, at most."""
        gaps = zip(self.renewals, self.renewals[1:], strict=False)
        return max((after - before).total_seconds() for before, after in gaps)


@dataclasses.dataclass(frozen=True, slots=True)
class Attacked:
    """What was measured of an operator that was attacked."""

    peace: AttackSample
    flooded: AttackSample
    counts: Mapping[str, float]
    """How often the attacker did what, and in how many `seconds`."""
    used: float
    """CPU seconds of the operator under the attack."""
    resident: tuple[float, float]
    """Its memory before the attack and at most, in MB."""
    probe: float
    """Seconds of the slowest answer to a probe under the attack."""

    def rate(self, what: str) -> str:
        """How often the attacker did something in a second."""
        return f"{self.counts.get(what, 0) / self.counts['seconds']:.0f}"

    @property
    def share(self) -> str:
        """How much of a core the operator used."""
        return f"{100 * self.used / self.counts['seconds']:.0f} %"


class Others:
    """The jobs that nobody attacks: their pods start and end, one after another."""

    def __init__(self, work: load.Load, jobs: Sequence[str], workers: int) -> None:
        self._work = work
        self._api = work.namespace.api
        self._jobs = jobs
        self._workers = workers
        self._turns = itertools.count()
        self._running = dict.fromkeys(jobs, 0)
        """How many pods of each job run, as their statuses say."""
        self._expected = dict.fromkeys(jobs, 0)
        """How many of each job run since its last event."""
        self._condition = asyncio.Condition()
        self.writes: list[float] = []
        """Seconds that the API server took for each event itself."""
        self.watch_delays: list[float] = []
        """Seconds from the sending of each event until a plain watch heard of it."""
        self._sent: dict[str, tuple[str, float]] = {}
        """The phase that was sent of each pod and not heard of yet, and when."""

    async def follow(self) -> None:
        """Learn of every status, and of every event itself, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_jobs())
            group.create_task(self._follow_pods())

    async def _follow_pods(self) -> None:
        namespace = self._work.namespace.name
        version = (await self._api.list(resources.PODS, namespace)).version
        async for event in self._api.watch(resources.PODS, namespace, version):
            name = event.object["metadata"].get("name")  # A bookmark has none.
            phase, sent = self._sent.get(name, ("", 0.0))
            if phase and phase == (event.object.get("status") or {}).get("phase"):
                del self._sent[name]
                self.watch_delays.append(time.perf_counter() - sent)

    async def _follow_jobs(self) -> None:
        namespace = self._work.namespace.name
        version = (await self._api.list(resources.JOBS, namespace)).version
        async for event in self._api.watch(resources.JOBS, namespace, version):
            name = event.object["metadata"].get("name")  # A bookmark has none.
            if name in self._running:
                roles = (event.object.get("status") or {}).get("replicas") or {}
                self._running[name] = roles.get("Worker", {}).get("running", 0)
                async with self._condition:
                    self._condition.notify_all()

    async def delays(self, seconds: float) -> list[float]:
        """Start and stop a pod of one job after another; return the seconds until each is seen."""
        begun = time.monotonic()
        tasks = []
        for number in range(round(seconds * RATE)):
            await asyncio.sleep(max(0.0, begun + number / RATE - time.monotonic()))
            turn, job = divmod(next(self._turns), len(self._jobs))
            tasks.append(asyncio.create_task(self._change(self._jobs[job], turn)))
        return list(await asyncio.gather(*tasks))

    async def _change(self, job: str, turn: int) -> float:
        """Start the pod of a turn, or have it wait again; return the seconds until that is seen."""
        starts = turn % 2 == 0
        pod = f"{job}-worker-{turn // 2 % self._workers}"
        state: dict[str, contestants.Body] = {"running": {}} if starts else {"waiting": {}}
        phase = "Running" if starts else "Pending"
        sent = time.perf_counter()
        self._sent[pod] = phase, sent
        await self._work.namespace.kubelet(pod, phase, **state)
        begun = time.perf_counter()
        self.writes.append(begun - sent)
        async with asyncio.timeout(load.LIMIT_SECONDS), self._condition:
            self._expected[job] = int(starts)
            self._condition.notify_all()  # A status may show this event and the one before at once.
            await self._condition.wait_for(lambda: self._running[job] == self._expected[job])
        return time.perf_counter() - begun


async def attack_operator(
    site: contestants.Place,
    size: results.Size,
    variables: Mapping[str, str],
    attack: contextlib.AbstractAsyncContextManager[Mapping[str, float]],
    operator: contestants.Contestant = contestants.OURS,
) -> Attacked:
    """Measure an operator with environment variables, first in peace and then under an attack."""
    ours = contestants.with_variables(
        operator,
        TFPARALLEL_LEASE=LEASE,
        TFPARALLEL_LEASE_SECONDS=str(LEASE_SECONDS),
        **variables,
    )
    jobs = [f"other-{number}" for number in range(min(size.jobs, 20))]
    async with load.opened(site.cluster, site.namespace) as opened:
        work = load.Load(opened, ours)
        async with contestants.running(ours, site) as running:
            await work.start([FLOODED], size.large)
            await work.start(jobs, size.replicas)
            others = Others(work, jobs, size.replicas)
            async with _beside(others.follow()):
                peace = await _sample(work, others, size.seconds / 2)
                resident = usage.resident(running.pid)
                used = usage.cpu_seconds(running.pid)
                probes: list[float] = []
                async with attack as counts, _beside(_probe(running, probes)):
                    flooded = await _sample(work, others, size.seconds)
                used = usage.cpu_seconds(running.pid) - used
            most = usage.most_resident(running.pid)
        await asyncio.to_thread(work.wipe)
    return Attacked(peace, flooded, counts, used, (resident, most), max(probes))


async def _probe(running: contestants.Running, seconds: list[float]) -> None:
    """Ask both probes each second, forever, and note how long the answers took."""
    while True:
        for path in ("/healthz", "/readyz"):
            begun = time.perf_counter()
            await asyncio.to_thread(running.read, path)
            seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let something without an end go on meanwhile; what it raises ends the rest too."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()


async def _sample(work: load.Load, others: Others, seconds: float) -> AttackSample:
    """Measure delays for some seconds, and note each renewal of the Lease."""
    api, namespace = work.namespace.api, work.namespace.name
    renewals: list[datetime.datetime] = []

    def note(body: contestants.Body) -> None:
        renewals.append(datetime.datetime.fromisoformat(body["spec"]["renewTime"]))

    async def follow() -> None:
        listing = await api.list(resources.LEASES, namespace)
        for item in listing.items:
            note(item)
        async for event in api.watch(resources.LEASES, namespace, listing.version):
            if event.type != "BOOKMARK":
                note(event.object)

    others.writes.clear()
    others.watch_delays.clear()
    async with _beside(follow()):
        delays = await others.delays(seconds)
    return AttackSample(delays, tuple(others.writes), tuple(others.watch_delays), renewals)


def _quantile(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[-1]
