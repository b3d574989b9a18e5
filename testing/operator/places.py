"""Places of tests on a cluster that knows TFParallelJob."""

import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator

from testing import waiting
from testing.cluster import console, handle
from testing.operator import harness
from tfparallel_operator.api import schema
from tfparallel_operator.engine import client, credentials, resources

SERVED_SECONDS = 120.0
_NUMBERS = itertools.count()


@contextlib.asynccontextmanager
async def on(cluster: handle.Cluster) -> AsyncIterator[harness.Place]:
    """A namespace of the test's own with a client of its own, empty of jobs and pods afterwards."""
    async with client.Client(credentials.find(str(cluster.kubeconfig))) as api:
        place = harness.Place(api, cluster, fresh_name())
        await place.create_namespace()
        yield place
        await place.clear()


def install(cluster: handle.Cluster, definition: harness.Body | None = None) -> handle.Cluster:
    """Install a custom resource, by default ours, by `kubectl apply`; wait until it is served."""
    manifest = json.dumps(definition or schema.custom_resource_definition())
    cluster.run_kubectl("apply", "-f", "-", input=manifest)
    name = f"crd/{resources.JOBS.plural}.tfparallel.dev"
    cluster.run_kubectl("wait", "--for=condition=Established", "--timeout=120s", name)
    _wait_served(cluster)
    return cluster


def _wait_served(cluster: handle.Cluster) -> None:
    """Ask for a job until there is an answer: on a busy machine the first question may get none."""

    def answer() -> str:
        ask = ("get", resources.JOBS.plural, "none", "--ignore-not-found", "--request-timeout=5s")
        try:
            cluster.run_kubectl(*ask)
        except console.ClusterError as error:
            return str(error)
        return ""

    what = "jobs are served: the last refusal is the value"
    waiting.until(answer, what, SERVED_SECONDS, when=lambda refusal: not refusal)


def fresh_name() -> str:
    """Return a name for a namespace that no other test uses."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"
