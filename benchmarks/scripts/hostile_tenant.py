"""Attacks an operator as a tenant could, with the worst of all that may be stored or sent.

All at the same time, in a namespace of its own: objects at the bounds of the schema and beyond,
jobs and ConfigMaps of a MB, jobs that nest deeply, statuses that no kubelet writes, hostile reports
with a valid token, and connections that never say a word. Prints as JSON how often it did what.
Arguments: a JSON object with the fields of `Target`.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import random
import ssl
import sys
from collections.abc import Callable

import aiohttp

from benchmarks.scripts import attacking
from testing.operator import hostile, objects, progress_site
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, credentials, errors, resources

JOB = "digits"
LARGE_JOBS, LARGE_MAPS, LARGE = 8, 40, 900_000
"""Large objects, and bytes of each."""

DEPTHS = (300, 1_100)
"""Levels of the templates of two jobs. Most parsers of JSON end at about 1,000."""

DIGITS = 60_000
"""Of a quantity."""

SILENT = 3_000
"""Connections that are open at the same time, and on which nothing is sent."""

RECONNECT_SECONDS = 10.0
"""Before one that was closed is opened again: the attacker shares two cores with all else."""

HTTP_CREATED = 201

PAUSE_SECONDS = 0.1
"""Of each sender: the operator is to be tried, and not how much an API server takes."""

KEPT = 100
"""Objects of a sender that are there at the same time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What is attacked."""

    kubeconfig: str
    namespace: str
    port: int
    """Of the progress endpoint, on this machine."""
    seconds: float


class Tenant:
    """A namespace with a job, the token of its coordinator, and what is counted."""

    def __init__(self, target: Target, site: progress_site.Site, uid: str, token: str) -> None:
        self.target = target
        self.site = site
        self.api = site.namespace.api
        self.uid = uid
        self.token = token
        self.counts: collections.Counter[str] = collections.Counter()
        self.numbers = itertools.count()
        self.pods: collections.deque[str] = collections.deque(maxlen=KEPT)
        """Names of pods that claim to be the job's."""
        self.generator = hostile.Generator(random.Random(0))  # noqa: S311 (chance, not a secret)

    async def store(self, resource: resources.Resource, body: client.Object) -> str:
        """Create an object; return its uid, which is empty if the API server refuses it."""
        try:
            answer = await self.api.create(
                resource, self.target.namespace, body, metadata_only=True
            )
        except errors.ApiError:
            self.counts["refused"] += 1
            return ""
        self.counts["objects"] += 1
        return str(answer["metadata"]["uid"])

    async def send(self, resource: resources.Resource, text: str) -> None:
        """Create an object of a text that the operator's own client would not write."""
        access = self.api.access
        url = access.server + resource.path(self.target.namespace)
        kind = {"Content-Type": "application/json"}
        async with access.session() as http, http.post(url, data=text, headers=kind) as answer:
            if answer.status != HTTP_CREATED:
                raise RuntimeError(await answer.text())
        self.counts["objects"] += 1


async def store_jobs(tenant: Tenant) -> None:
    """Store one hostile job after another, and delete old ones."""
    await _replace(tenant, resources.JOBS, tenant.generator.job)


async def store_pods(tenant: Tenant) -> None:
    """Store pods that claim to be the job's."""

    def build(name: str) -> client.Object:
        tenant.pods.append(name)
        pod = tenant.generator.pod(name, JOB, tenant.uid)
        pod["metadata"].pop("finalizers", None)
        return pod

    await _replace(tenant, resources.PODS, build)


async def _replace(
    tenant: Tenant, resource: resources.Resource, build: Callable[[str], client.Object]
) -> None:
    stored: collections.deque[tuple[str, str]] = collections.deque()
    while True:
        name = f"hostile-{next(tenant.numbers)}"
        if uid := await tenant.store(resource, build(name)):
            stored.append((name, uid))
        if len(stored) > KEPT:
            with contextlib.suppress(errors.ApiError):
                await tenant.api.delete(resource, tenant.target.namespace, *stored.popleft())
        await asyncio.sleep(PAUSE_SECONDS)


async def store_large_objects(tenant: Tenant) -> None:
    """Store what is as large as the API server takes."""
    for number in range(LARGE_JOBS):
        job = objects.job(f"large-{number}", workers=0)
        job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["x"] = [{}] * (LARGE // 3)
        await tenant.store(resources.JOBS, job)
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    for number in range(LARGE_MAPS):
        metadata = {"name": f"large-{number}", "labels": labels}
        await tenant.store(
            resources.CONFIG_MAPS, {"metadata": metadata, "data": {"x": "a" * LARGE}}
        )


async def store_deep_and_long_texts(tenant: Tenant) -> None:
    """Store what takes a parser long, or too far down."""
    for depth in DEPTHS:
        job = objects.job(f"deep-{depth}", workers=0)
        job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["x"] = "NESTED"
        text = json.dumps(job).replace('"NESTED"', "[" * depth + "]" * depth)
        await tenant.send(resources.JOBS, text)
    limits = {"memory": "9" * DIGITS + "x", names.GPU_RESOURCE: "1"}
    job = objects.job("digits-of-a-quantity", workers=0)
    template = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]
    template["spec"]["containers"][0]["resources"] = {"limits": limits}
    await tenant.store(resources.JOBS, job)


async def write_statuses(tenant: Tenant) -> None:
    """Write statuses of the job's pods, and of those that claim to be, as no kubelet does."""
    for number in itertools.count():
        pod = tenant.pods[-1] if number % 2 and tenant.pods else f"{JOB}-worker-{number % 4 // 2}"
        path = resources.PODS.path(tenant.target.namespace, pod, "status")
        with contextlib.suppress(errors.ApiError):
            await tenant.api.patch(path, {"status": tenant.generator.pod_status()})
            tenant.counts["statuses"] += 1
        await asyncio.sleep(PAUSE_SECONDS)


async def report(tenant: Tenant) -> None:
    """Report what a job's own code could, one report after another."""
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            status, _ = await tenant.site.send(tenant.token, tenant.generator.report())
            tenant.counts["reports"] += 1
            tenant.counts[f"status {status}"] += 1
        await asyncio.sleep(PAUSE_SECONDS)


async def say_nothing(tenant: Tenant) -> None:
    """Open connections, and send nothing on any of them."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", tenant.target.port)
            tenant.counts["silent"] += 1
            await reader.read()
            writer.close()
        await asyncio.sleep(RECONNECT_SECONDS)


ATTACKS: tuple[tuple[attacking.Attack[Tenant], int], ...] = (
    (store_jobs, 2),
    (store_pods, 2),
    (store_large_objects, 1),
    (store_deep_and_long_texts, 1),
    (write_statuses, 4),
    (report, 8),
    (say_nothing, SILENT),
)


async def run(target: Target) -> dict[str, float]:
    """Attack, and return the counts with the seconds that they took."""
    async with client.Client(credentials.find(target.kubeconfig)) as api:
        namespace = Namespace(api, None, target.namespace)  # type: ignore[arg-type]
        await namespace.create_namespace()
        await namespace.create_job(objects.job(JOB))
        await namespace.until_pods(f"{JOB}-chief-0", f"{JOB}-worker-0", f"{JOB}-worker-1")
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as http:
            site = progress_site.Site(namespace, target.port, http)
            token = await site.token(f"{JOB}-chief-0", await site.audience())
            tenant = Tenant(target, site, (await namespace.job())["metadata"]["uid"], token)
            seconds = await attacking.run(ATTACKS, tenant, target.seconds)
    return {**tenant.counts, "seconds": seconds}


if __name__ == "__main__":
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    print(json.dumps(asyncio.run(run(Target(**json.loads(sys.argv[1]))))))
