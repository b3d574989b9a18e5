"""Namespaces of a real API server, in which tests play the kubelet and the user."""

import asyncio
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from testing import waiting
from testing.cluster import handle
from testing.operator import objects
from tfparallel_operator.api import names, schema
from tfparallel_operator.api_server import client, credentials, errors, resources
from tfparallel_operator.engine import handlers
from tfparallel_operator.engine.run import engine, settings

CLOSE_SECONDS = 0.1
"""What TLS connections take that were cancelled during their handshake: then they are closed."""

NAMESPACES = resources.Resource("v1", "namespaces")
SERVICE_ACCOUNTS = resources.Resource("v1", "serviceaccounts")

Body = dict[str, Any]

_NUMBERS = itertools.count()


@dataclasses.dataclass(frozen=True)
class Namespace:
    """A namespace on a test cluster."""

    api: client.Client
    cluster: handle.Cluster
    name: str

    async def create_namespace(self) -> None:
        metadata = {"metadata": {"name": self.name}}
        await self.api.create(NAMESPACES, None, metadata)
        with contextlib.suppress(errors.AlreadyExists):
            account = {"metadata": {"name": "default"}}
            await self.api.create(SERVICE_ACCOUNTS, self.name, account)

    def kubectl(self, *arguments: str, body: Body | None = None) -> str:
        text = None if body is None else json.dumps(body)
        return self.cluster.run_kubectl("-n", self.name, *arguments, input=text)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of an operator's process for this namespace alone."""
        return {
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "TFPARALLEL_WATCH_NAMESPACES": self.name,
            "POD_NAMESPACE": self.name,
        }

    def settings(self, **more: Any) -> settings.Settings:
        """Return the settings of an operator for this namespace alone."""
        values = {
            "trainer_image": "trainer:test",
            "watch_namespaces": (self.name,),
            "namespace": self.name,
            "health_port": 0,
            "kubeconfig": str(self.cluster.kubeconfig),
        }
        return settings.Settings(**{**values, **more})

    @contextlib.asynccontextmanager
    async def operator(self, **more: Any) -> AsyncIterator[None]:
        """Run the operator in this process."""
        stop = asyncio.Event()
        task = asyncio.create_task(handlers.run(engine.Engine(self.settings(**more)), stop))
        try:
            yield
        finally:
            stop.set()
            await task
            await asyncio.sleep(CLOSE_SECONDS)

    async def create_job(self, job: Body | None = None) -> Body:
        return await self.api.create(resources.JOBS, self.name, job or objects.job())

    def change(self, spec: Body, name: str = "digits") -> None:
        """Change fields of a job's spec as a person does, with kubectl."""
        self.kubectl("patch", "tfpj", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    async def delete_jobs(self) -> None:
        for job in (await self.api.list(resources.JOBS, self.name)).items:
            metadata = job["metadata"]
            await self.api.delete(resources.JOBS, self.name, metadata["name"], metadata["uid"])

    async def clear(self) -> None:
        """Delete all jobs and pods: the garbage collector may learn of jobs a minute late."""
        await self.delete_jobs()
        self.kubectl("delete", "pods", "--all")

    async def job(self, name: str = "digits") -> Body:
        return await self.api.get(resources.JOBS.path(self.name, name))

    async def status(self, name: str = "digits") -> Body:
        status: Body = (await self.job(name)).get("status", {})
        return status

    async def condition(self, kind: str, name: str = "digits") -> Body:
        conditions = (await self.status(name)).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    async def pods(self) -> dict[str, Body]:
        items = await self.api.list(resources.PODS, self.name)
        return {pod["metadata"]["name"]: pod for pod in items.items}

    async def kubelet(self, pod: str, phase: str, **container: Any) -> None:
        """Write a pod's status as the kubelet does."""
        status = {"phase": phase, **(objects.container(**container) if container else {})}
        if container:
            state = {"ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
            status["containerStatuses"][0].update(state)
        path = resources.PODS.path(self.name, pod, "status")
        await self.api.patch(path, {"status": status})

    async def write_status(self, pod: str, status: Body) -> None:
        """Write a whole status of a pod, and of its containers what the API server asks for."""
        filled = {"ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
        statuses = {
            key: [{**filled, **container} for container in status[key]]
            for key in ("containerStatuses", "initContainerStatuses")
            if key in status
        }
        path = resources.PODS.path(self.name, pod, "status")
        await self.api.patch(path, {"status": {**status, **statuses}})

    async def run_all(self) -> None:
        """Start every pod that waits."""
        for name, pod in (await self.pods()).items():
            if pod["status"]["phase"] == "Pending":
                await self.kubelet(name, "Running", running={})

    async def end(self, pod: str, code: int) -> None:
        """End a pod's container with an exit code."""
        phase = "Failed" if code else "Succeeded"
        reason = "Error" if code else "Completed"
        await self.kubelet(pod, phase, terminated={"exitCode": code, "reason": reason})

    async def until_status(
        self,
        what: str,
        when: Callable[[Body], Any],
        name: str = "digits",
        limit: float = waiting.LIMIT_SECONDS,
    ) -> Body:
        """Wait until a job's status meets a condition, and return it."""
        return await waiting.until_async(lambda: self.status(name), what, limit, when=when)

    async def until_state(self, state: str, name: str = "digits") -> Body:
        what = f"job {name} is {state}"
        return await self.until_status(what, lambda status: status.get("state") == state, name)

    async def until_reason(self, role: str, sentence: str, name: str = "digits") -> Body:
        """Wait until the status says these words about a role's pods, and return it."""

        def says(status: Body) -> bool:
            return sentence in (status.get("replicas", {}).get(role, {}).get("reason") or "")

        return await self.until_status(f"job {name} says {sentence!r} of its {role}", says, name)

    async def until_pods(self, *pod_names: str, attempt: int = 1) -> dict[str, Body]:
        """Wait until exactly these pods of this attempt exist."""
        expected = dict.fromkeys(pod_names, str(attempt))

        async def attempts() -> dict[str, str]:
            return {name: _attempt(pod) for name, pod in (await self.pods()).items()}

        what = f"pods {', '.join(pod_names) or 'none'} of attempt {attempt}"
        await waiting.until_async(attempts, what, when=expected.__eq__)
        return await self.pods()

    async def run_pods(self, *pod_names: str, attempt: int = 1) -> dict[str, Body]:
        """Wait until exactly these pods exist, start them, and wait until the job runs."""
        pods = await self.until_pods(*pod_names, attempt=attempt)
        await self.run_all()
        await self.until_state("Running")
        return pods

    async def until_refused(self, reason: str) -> Body:
        """Wait until the job reports, with this reason, that its pods are refused."""
        return await waiting.until_async(
            lambda: self.condition("CreationRefused"),
            f"the pods are refused with {reason}",
            when=lambda condition: (
                (condition.get("status"), condition.get("reason")) == ("True", reason)
            ),
        )

    async def until_let_through(self) -> None:
        """Wait until the job no longer says that its pods are refused."""
        await waiting.until_async(
            lambda: self.condition("CreationRefused"),
            "the pods are no longer refused",
            when=lambda condition: condition.get("status") == "False",
        )

    async def until_gone(self, path: str) -> None:
        """Wait until there is no object of this path."""

        async def gone() -> bool:
            try:
                await self.api.get(path)
            except errors.NotFound:
                return True
            return False

        await waiting.until_async(gone, f"{path} is gone")

    @contextlib.asynccontextmanager
    async def creations(self) -> AsyncIterator[list[tuple[str, str, str]]]:
        """Collect each pod that is created from now on: name, attempt, replica attempt.

        All are there when this is left.
        """
        version = (await self.api.list(resources.PODS, self.name)).version
        pods: list[tuple[str, str, str]] = []
        task = asyncio.create_task(self._gather(version, pods))
        try:
            yield pods
            last: Body = {"metadata": {"name": "last"}, **objects.template()}
            await self.api.create(resources.PODS, self.name, last)
            async with asyncio.timeout(waiting.LIMIT_SECONDS):
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _gather(self, version: str, pods: list[tuple[str, str, str]]) -> None:
        """Follow the pods until the last one."""
        while True:
            async for event in self.api.watch(resources.PODS, self.name, version):
                metadata = event.object["metadata"]
                version = metadata["resourceVersion"]
                if event.type != "ADDED":
                    continue
                if metadata["name"] == "last":
                    return
                labels = metadata["labels"]
                attempts = (labels[names.LABEL_ATTEMPT], labels[names.LABEL_REPLICA_ATTEMPT])
                pods.append((metadata["name"], *attempts))


@contextlib.asynccontextmanager
async def open_in(cluster: handle.Cluster) -> AsyncIterator[Namespace]:
    """A namespace of the test's own with a client of its own, empty of jobs and pods afterwards."""
    async with client.Client(credentials.find(str(cluster.kubeconfig))) as api:
        namespace = Namespace(api, cluster, fresh_name())
        await namespace.create_namespace()
        yield namespace
        await namespace.clear()


def install(cluster: handle.Cluster, definition: Body | None = None) -> handle.Cluster:
    """Install a custom resource, by default ours, by `kubectl apply`; wait until it is served."""
    manifest = json.dumps(definition or schema.custom_resource_definition())
    cluster.run_kubectl("apply", "-f", "-", input=manifest)
    cluster.wait_established(f"{names.PLURAL}.{names.GROUP}")
    return cluster


def fresh_name() -> str:
    """Return a name for a namespace that no other test uses."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"


def seconds_since(text: str) -> int:
    """Whole seconds since a time of the API's."""
    passed = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(text)
    return int(passed.total_seconds())


def _attempt(pod: Body) -> str:
    return str(pod["metadata"]["labels"][names.LABEL_ATTEMPT])
