"""Places of tests on a cluster that knows TFParallelJob."""

import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator

from testing.cluster import handle
from testing.operator import harness
from tfparallel_operator.api import names, schema
from tfparallel_operator.api_server import client, credentials

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
    cluster.wait_established(f"{names.PLURAL}.{names.GROUP}")
    return cluster


def fresh_name() -> str:
    """Return a name for a namespace that no other test uses."""
    return f"test-{os.getpid()}-{next(_NUMBERS)}"
