"""A real cluster with both images on its node and the operator installed by the chart."""

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from testing.cluster import handle
from testing.e2e import namespaces, operator, volumes
from testing.images import build, inputs

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(full_cluster: handle.Cluster) -> Iterator[handle.Cluster]:
    """The cluster with the operator; after the tests only the CRD is left, and then not even it."""
    for image in build.ensure(inputs.TARGETS.values()):
        full_cluster.load_image(image.archive)
    operator.install(full_cluster)
    full_cluster.create_namespace(volumes.KEEPER_NAMESPACE)
    yield full_cluster
    operator.uninstall(full_cluster)
    full_cluster.run_kubectl("delete", "crd", operator.CRD)
    full_cluster.run_kubectl(
        "delete", "namespace", operator.NAMESPACE, volumes.KEEPER_NAMESPACE, "--timeout=120s"
    )


@pytest.fixture(scope="session")
def make_namespace(
    cluster: handle.Cluster,
) -> Iterator[Callable[[str], namespaces.Namespace]]:
    """Makes namespaces that enforce the level restricted; they go at the end of the session."""
    made: list[str] = []

    def make(purpose: str) -> namespaces.Namespace:
        plain = re.sub(r"[^a-z0-9]+", "-", purpose.lower()).strip("-")
        name = f"{plain[:40]}-{next(_NUMBERS)}"
        cluster.create_namespace(name)
        level = "pod-security.kubernetes.io/enforce=restricted"
        cluster.run_kubectl("label", "namespace", name, level)
        made.append(name)
        return namespaces.Namespace(cluster, name)

    yield make
    if made:
        cluster.run_kubectl("delete", "namespace", *made, "--timeout=600s", limit=660.0)


@pytest.fixture(scope="module")
def module_namespace(
    request: pytest.FixtureRequest, make_namespace: Callable[[str], namespaces.Namespace]
) -> namespaces.Namespace:
    """One namespace for all tests of a file."""
    return make_namespace(request.module.__name__.rpartition("test_")[2])


@pytest.fixture
def namespace(
    request: pytest.FixtureRequest, make_namespace: Callable[[str], namespaces.Namespace]
) -> namespaces.Namespace:
    """A namespace for one test."""
    return make_namespace(request.node.name.removeprefix("test_"))
