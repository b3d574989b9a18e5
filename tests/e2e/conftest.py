"""A real cluster with both images on its node and the operator installed by the chart."""

from collections.abc import Iterator

import pytest

from testing.cluster import handle
from testing.e2e import kubectl_namespaces, operator


@pytest.fixture(scope="session")
def cluster(full_cluster: handle.Cluster) -> Iterator[handle.Cluster]:
    """The cluster with the operator."""
    with operator.running(full_cluster):
        yield full_cluster


@pytest.fixture(scope="session")
def make_namespace(cluster: handle.Cluster) -> Iterator[kubectl_namespaces.Make]:
    """Makes namespaces that enforce the level restricted."""
    with kubectl_namespaces.maker(cluster) as make:
        yield make


@pytest.fixture(scope="module")
def module_namespace(
    request: pytest.FixtureRequest, make_namespace: kubectl_namespaces.Make
) -> kubectl_namespaces.KubectlNamespace:
    """One namespace for all tests of a file."""
    return make_namespace(request.module.__name__.rpartition("test_")[2])


@pytest.fixture
def namespace(
    request: pytest.FixtureRequest, make_namespace: kubectl_namespaces.Make
) -> kubectl_namespaces.KubectlNamespace:
    """A namespace for one test."""
    return make_namespace(request.node.name.removeprefix("test_"))
