"""A real API server with the custom resource, a namespace for each test, and a client."""

from collections.abc import AsyncIterator

import pytest

from testing.cluster import handle
from testing.operator import harness, places
from tfparallel_operator.engine import client, credentials

ON_BOTH_VERSIONS = ("test_crd", "test_life")
"""What is tested on the newest and on the oldest Kubernetes that the product supports."""

LONG_ON_THE_OLDEST = "test_life"
ALWAYS_ON_THE_OLDEST = "test_a_job_goes_from_pending_to_running_to_succeeded"
"""One life says whether the oldest server takes what the operator sends; the others are long."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the cluster of the modules that are tested on two versions."""
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in ON_BOTH_VERSIONS and "cluster" in metafunc.fixturenames:
        is_long = (
            module == LONG_ON_THE_OLDEST and metafunc.function.__name__ != ALWAYS_ON_THE_OLDEST
        )
        marks = pytest.mark.long if is_long else ()
        clusters = [
            pytest.param("light_cluster", id="newest"),
            pytest.param("older_cluster", id="oldest", marks=marks),
        ]
        metafunc.parametrize("cluster", clusters, indirect=True, scope="session")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> handle.Cluster:
    """An API server that knows TFParallelJob, by plain `kubectl apply`."""
    found: handle.Cluster = request.getfixturevalue(getattr(request, "param", "light_cluster"))
    return places.install(found)


@pytest.fixture(scope="session")
def cluster_with_nodes(light_cluster_with_nodes: handle.Cluster) -> handle.Cluster:
    """The same with controllers, a scheduler and nodes that pretend to run pods."""
    return places.install(light_cluster_with_nodes)


@pytest.fixture
async def api(cluster: handle.Cluster) -> AsyncIterator[client.Client]:
    """A client with all rights."""
    async with client.Client(credentials.find(str(cluster.kubeconfig))) as opened:
        yield opened


@pytest.fixture
async def place(api: client.Client, cluster: handle.Cluster) -> AsyncIterator[harness.Place]:
    """A namespace of the test's own, with a service account; no job is left in it."""
    place = harness.Place(api, cluster, places.fresh_name())
    await place.create_namespace()
    yield place
    await place.delete_jobs()


@pytest.fixture
async def place_with_nodes(cluster_with_nodes: handle.Cluster) -> AsyncIterator[harness.Place]:
    """A namespace of the test's own in the cluster with nodes, whose GPUs are free afterwards."""
    async with places.on(cluster_with_nodes) as place:
        yield place
