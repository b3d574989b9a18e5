"""A real API server with the custom resource, a namespace for each test, and a client."""

from collections.abc import AsyncIterator

import pytest

from testing.cluster import handle
from testing.operator import namespaces
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import client, credentials


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> handle.Cluster:
    """An API server that knows TFParallelJob, by plain `kubectl apply`."""
    test_cluster: handle.Cluster = request.getfixturevalue(
        getattr(request, "param", "light_cluster")
    )
    return namespaces.install(test_cluster)


@pytest.fixture(scope="session")
def cluster_with_nodes(light_cluster_with_nodes: handle.Cluster) -> handle.Cluster:
    """The same with controllers, a scheduler and nodes that pretend to run pods."""
    return namespaces.install(light_cluster_with_nodes)


@pytest.fixture
async def api(cluster: handle.Cluster) -> AsyncIterator[client.Client]:
    """A client with all rights."""
    async with client.Client(credentials.find(str(cluster.kubeconfig))) as opened:
        yield opened


@pytest.fixture
async def namespace(api: client.Client, cluster: handle.Cluster) -> AsyncIterator[Namespace]:
    """A namespace of the test's own, with a service account; no job is left in it."""
    namespace = Namespace(api, cluster, namespaces.fresh_name())
    await namespace.create_namespace()
    yield namespace
    await namespace.delete_jobs()


@pytest.fixture
async def namespace_with_nodes(cluster_with_nodes: handle.Cluster) -> AsyncIterator[Namespace]:
    """A namespace of the test's own in the cluster with nodes, whose GPUs are free afterwards."""
    async with namespaces.open_in(cluster_with_nodes) as namespace:
        yield namespace
