"""Hostile objects of one tenant: the operator runs on, meets no bug, and serves other jobs."""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import pathlib
import random
import ssl
from collections.abc import AsyncIterator, Iterator

import aiohttp
import hypothesis
import pytest
from hypothesis import strategies

from testing.operator import (
    generated_jobs,
    hostile,
    namespaces,
    objects,
    operator_process,
    progress_site,
)
from testing.operator.memory_cluster import MemoryCluster
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core.pods import config

OBJECTS = 200
MANY = 20_000
CYCLE = 250
"""Objects after which they are deleted, and another job has to be served."""

JOBS_SHARE = 12
"""Of so many objects one is a job that Hypothesis generates, and one a job of the generator."""

SENDERS = 8
LARGE_REPORTS = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
"""The tenant's own client says so of a report that is far too large."""

REPLICAS = ("chief-0", "worker-0", "worker-1")
BUGS = 'tfparallel_reconcile_duration_seconds_count{outcome="bug"} 0.0'


def bugs(world: MemoryCluster) -> float | None:
    return world.engine.metrics.registry.get_sample_value(
        "tfparallel_reconcile_duration_seconds_count", {"outcome": "bug"}
    )


async def other_job_is_served(world: MemoryCluster) -> None:
    await world.api.create(resources.JOBS, "others", objects.job("other"))
    await world.engine.run_until_quiet(seconds=0)
    pods = {
        pod["metadata"]["name"]
        for pod in world.api.items(resources.PODS)
        if pod["metadata"]["namespace"] == "others"
    }
    assert pods == {f"other-{replica}" for replica in REPLICAS}


@hypothesis.given(job=generated_jobs.jobs(), source=strategies.randoms(use_true_random=False))
async def test_a_job_of_and_against_the_schema_meets_no_bug(
    job: namespaces.Body, source: random.Random
) -> None:
    """The API server's own checks are left out: a stored job may be of another schema."""
    hostile.Generator(source).complete(job, "hostile")
    job["metadata"] = {"name": "hostile", "generation": 1}
    world = MemoryCluster()
    async with world.running(job):
        await world.start_pods()
        await other_job_is_served(world)
        assert bugs(world) == 0


@hypothesis.given(strategies.randoms(use_true_random=False))
async def test_a_pod_with_a_status_that_no_kubelet_writes_meets_no_bug(
    source: random.Random,
) -> None:
    world = MemoryCluster()
    generator = hostile.Generator(source)
    async with world.running(objects.job()):
        for number in range(6):
            pods = world.api.items(resources.PODS)
            if pods:
                world.api.write_status(pods[number % len(pods)], **generator.pod_status())
            await world.let_go()
        await other_job_is_served(world)
        assert bugs(world) == 0


@dataclasses.dataclass
class Attack:
    """A tenant who stores hostile objects next to a job of their own, and reports as its pod."""

    namespace: Namespace
    site: progress_site.Site
    generator: hostile.Generator
    jobs: Iterator[namespaces.Body]
    """Of Hypothesis, of and against the schema: they come before those of the generator."""

    uid: str
    token: str
    numbers: Iterator[int]
    answers: collections.Counter[str]

    async def send(self) -> None:
        """Send one object of a kind in turn; the API server may refuse it."""
        number = next(self.numbers)
        kinds = (self._job, self._change, self._pod, self._status, self._child, self._report)
        kind = kinds[number % len(kinds)]
        try:
            await kind(f"hostile-{number}")
            self.answers["stored"] += 1
        except errors.ApiError as error:
            self.answers[f"refused {error.status}"] += 1

    async def _job(self, name: str) -> None:
        job = next(self.jobs, None)
        job = self.generator.job(name) if job is None else self.generator.complete(job, name)
        await self.namespace.api.create(resources.JOBS, self.namespace.name, job)

    async def _change(self, _: str) -> None:
        path = resources.JOBS.path(self.namespace.name, "digits")
        await self.namespace.api.patch(path, self.generator.change())

    async def _pod(self, name: str) -> None:
        pod = self.generator.pod(name, "digits", self.uid)
        await self.namespace.api.create(resources.PODS, self.namespace.name, pod)
        await self._write_status(name)

    async def _status(self, _: str) -> None:
        await self._write_status("digits-worker-0")

    async def _write_status(self, pod: str) -> None:
        path = resources.PODS.path(self.namespace.name, pod, "status")
        await self.namespace.api.patch(path, {"status": self.generator.pod_status()})

    async def _child(self, name: str) -> None:
        kinds = {"ConfigMap": resources.CONFIG_MAPS, "Service": resources.SERVICES}
        kind = ("ConfigMap", "Service")[len(name) % 2]
        child = self.generator.child(kind, name, "digits", self.uid)
        await self.namespace.api.create(kinds[kind], self.namespace.name, child)

    async def _report(self, _: str) -> None:
        report = self.generator.report()
        # The operator closes a connection after a while, and one that sends too much.
        with contextlib.suppress(aiohttp.ClientConnectionError):
            status, _message = await self.site.send(self.token, report)
            assert status != 500, report


@contextlib.asynccontextmanager
async def attacked(
    namespace: Namespace, log: pathlib.Path, count: int
) -> AsyncIterator[tuple[Attack, Namespace, operator_process.OperatorProcess]]:
    """Run an operator that a tenant attacks, and a namespace of somebody else."""
    others = Namespace(namespace.api, namespace.cluster, namespaces.fresh_name())
    await others.create_namespace()
    [port] = ports.allocate(1)
    arguments = {
        "KUBECONFIG": str(namespace.cluster.kubeconfig),
        "TFPARALLEL_WATCH_NAMESPACES": f"{namespace.name},{others.name}",
        "TFPARALLEL_PROGRESS_HOST": progress_site.HOST,
        "TFPARALLEL_PROGRESS_PORT": str(port),
        "POD_NAMESPACE": others.name,
    }
    async with operator_process.running(arguments, log) as operator:
        await operator.until_ready()
        await namespace.create_job()
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        path = resources.CONFIG_MAPS.path(namespace.name, "digits-tfparallel")
        authorities = (await namespace.api.get(path))["data"][config.CA_FILE_KEY]
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authorities))
        async with aiohttp.ClientSession(connector=connector) as http:
            site = progress_site.Site(namespace, port, http)
            token = await site.token("digits-chief-0", await site.audience())
            uid = (await namespace.job())["metadata"]["uid"]
            generator = hostile.Generator(random.Random(count))  # noqa: S311 (chance, not a secret)
            jobs = iter(generated_jobs.collect(count // JOBS_SHARE, seed=count))
            numbers, answers = itertools.count(), collections.Counter[str]()
            attack = Attack(namespace, site, generator, jobs, uid, token, numbers, answers)
            yield attack, others, operator
    await others.delete_jobs()


async def run(namespace: Namespace, log: pathlib.Path, count: int) -> Attack:
    """Send hostile objects; after each cycle the operator is alive and serves somebody else."""
    async with attacked(namespace, log, count) as (attack, others, operator):
        for begin in range(0, count, CYCLE):
            numbers = iter(range(begin, min(begin + CYCLE, count)))

            async def send(numbers: Iterator[int] = numbers) -> None:
                for _ in numbers:
                    await attack.send()

            await asyncio.gather(*(send() for _ in range(SENDERS)))
            # Nobody collects the children of a deleted job here, so each has a name of its own.
            other = f"other-{begin}"
            await others.create_job(objects.job(other))
            await others.until_pods(*(f"{other}-{replica}" for replica in REPLICAS))
            assert operator.process.returncode is None, operator.log[-4000:]
            assert (await operator.probe("/healthz"))[0] == 200
            assert (await operator.probe("/readyz"))[0] == 200
            assert BUGS in (await operator.probe("/metrics"))[1], operator.log[-8000:]
            await others.clear()
            await wipe(namespace)
        assert "Traceback" not in operator.log, operator.log[-8000:]
    return attack


async def wipe(namespace: Namespace) -> None:
    """Delete what the tenant has stored, but not the job that it belongs to."""
    ours = {"digits", "digits-chief-0", "digits-worker-0", "digits-worker-1", "digits-tfparallel"}
    for kind in (resources.JOBS, resources.PODS, resources.CONFIG_MAPS, resources.SERVICES):
        for item in (await namespace.api.list(kind, namespace.name)).items:
            metadata = item["metadata"]
            if metadata["name"] in ours:
                continue
            path = kind.path(namespace.name, metadata["name"])
            if metadata.get("finalizers"):
                await namespace.api.patch(path, {"metadata": {"finalizers": None}})
            with contextlib.suppress(errors.NotFound):
                await namespace.api.delete(kind, namespace.name, metadata["name"], metadata["uid"])


@LARGE_REPORTS
async def test_hostile_objects_stop_nobody(namespace: Namespace, tmp_path: pathlib.Path) -> None:
    attack = await run(namespace, tmp_path / "operator.log", OBJECTS)
    assert attack.answers["stored"] > OBJECTS / 3, attack.answers


@pytest.mark.long
@pytest.mark.timeout(3600)
@LARGE_REPORTS
async def test_very_many_hostile_objects_stop_nobody(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    attack = await run(namespace, tmp_path / "operator.log", MANY)
    assert attack.answers["stored"] > MANY / 3, attack.answers
