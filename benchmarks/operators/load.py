"""What users and kubelets do to an operator, and when it has answered."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from benchmarks.operators import contestants
from testing import waiting
from testing.cluster import handle
from testing.operator import namespaces
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import client, credentials, errors, resources

LIMIT_SECONDS = 300.0
_CHILDREN = (
    resources.PODS,
    resources.SERVICES,
    resources.CONFIG_MAPS,
    resources.NETWORK_POLICIES,
    resources.EVENTS,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """Jobs of one operator in one namespace."""

    namespace: Namespace
    contestant: contestants.Contestant

    async def start(self, jobs: Sequence[str], workers: int) -> float:
        """Create jobs at once; return the seconds until all their pods exist."""
        return await self.until_pods(jobs, workers, self.create(jobs, workers))

    async def until_pods(
        self, jobs: Sequence[str], workers: int, creation: Coroutine[Any, Any, None]
    ) -> float:
        """Begin with this; return the seconds until all pods of the jobs exist."""
        before = (await self.namespace.api.list(resources.PODS, self.namespace.name)).version
        missing = {f"{job}-worker-{index}" for job in jobs for index in range(workers)}
        begun = time.perf_counter()
        async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as group:
            group.create_task(creation)
            events = self.namespace.api.watch(resources.PODS, self.namespace.name, before)
            async for event in events:
                if event.type == "ADDED":
                    missing.discard(event.object["metadata"]["name"])
                if not missing:
                    break
            return time.perf_counter() - begun

    async def create(
        self, jobs: Sequence[str], workers: int, node: str = "", **policy: object
    ) -> None:
        """Create jobs."""
        api, namespace = self.namespace.api, self.namespace.name
        bodies = (self.contestant.job(job, workers, node, **policy) for job in jobs)
        await asyncio.gather(
            *(api.create(self.contestant.resource, namespace, job) for job in bodies)
        )

    async def run(self, jobs: Sequence[str], workers: int) -> None:
        """Start all pods, as kubelets do."""
        await asyncio.gather(
            *(
                self.namespace.kubelet(f"{job}-worker-{index}", "Running", running={})
                for job in jobs
                for index in range(workers)
            )
        )
        await self.until_all(jobs, "Running")

    async def end(self, jobs: Sequence[str], workers: int) -> None:
        """End all pods with success."""
        await asyncio.gather(
            *(
                self.namespace.end(f"{job}-worker-{index}", 0)
                for job in jobs
                for index in range(workers)
            )
        )

    async def until_all(self, jobs: Sequence[str], condition: str) -> None:
        """Wait until a condition of all these jobs holds."""

        async def reached() -> bool:
            listed = await self.namespace.api.list(self.contestant.resource, self.namespace.name)
            names = {item["metadata"]["name"] for item in listed.items if _is_true(item, condition)}
            await asyncio.sleep(0.1)
            return names.issuperset(jobs)

        await waiting.until_async(reached, f"all jobs are {condition}", LIMIT_SECONDS)

    def wipe(self) -> None:
        """Remove all jobs and their children, while no operator runs."""
        for resource in (self.contestant.resource, *_CHILDREN):
            path = resource.path(self.namespace.name)
            self.namespace.cluster.run_kubectl("delete", "--raw", path)


def _is_true(job: dict[str, Any], condition: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(record["type"] == condition and record["status"] == "True" for record in conditions)


@contextlib.asynccontextmanager
async def opened(cluster: handle.Cluster, namespace: str) -> AsyncIterator[Namespace]:
    """A namespace of the cluster's, with a service account."""
    async with client.Client(credentials.find(str(cluster.kubeconfig))) as api:
        opened_namespace = Namespace(api, cluster, namespace)
        with contextlib.suppress(errors.AlreadyExists):
            await opened_namespace.create_namespace()
        yield opened_namespace
        await asyncio.sleep(namespaces.CLOSE_SECONDS)
