"""Places of tests on a cluster that knows TFParallelJob."""

import contextlib
import itertools
import json
import os
import time
from collections.abc import AsyncIterator

from testing.cluster import console, handle
from testing.operator import harness
from tfparallel_operator.api import schema
from tfparallel_operator.engine import client, resources

SERVED_SECONDS = 120.0
_NUMBERS = itertools.count()


@contextlib.asynccontextmanager
async def opened(api: client.Client, cluster: handle.Cluster) -> AsyncIterator[harness.Place]:
    """A namespace of the test's own, empty of jobs and pods afterwards."""
    place = harness.Place(api, cluster, fresh_name())
    await place.create_namespace()
    yield place
    await place.clear()


def install(cluster: handle.Cluster) -> handle.Cluster:
    """Install the custom resource by plain `kubectl apply` and wait until it is served."""
    manifest = json.dumps(schema.custom_resource_definition())
    cluster.run_kubectl("apply", "-f", "-", input=manifest)
    name = f"crd/{resources.JOBS.plural}.tfparallel.dev"
    cluster.run_kubectl("wait", "--for=condition=Established", "--timeout=120s", name)
    _wait_served(cluster)
    return cluster


def _wait_served(cluster: handle.Cluster) -> None:
    """Ask for a job until there is an answer: on a busy machine the first question may get none."""
    deadline = time.monotonic() + SERVED_SECONDS
    ask = ("get", resources.JOBS.plural, "none", "--ignore-not-found", "--request-timeout=5s")
    while True:
        try:
            cluster.run_kubectl(*ask)
        except console.ClusterError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def fresh_name() -> str:
    """Return a name for a namespace that no other test uses."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"
