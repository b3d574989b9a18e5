"""Installs and uninstalls the operator as the README does."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from images import targets
from testing import paths
from testing.cluster import handle, lifecycle
from testing.e2e import volumes
from testing.image_cache import build

NAMESPACE = "tfparallel-system"
RELEASE = "tfparallel-operator"
CRD = "tfparalleljobs.tfparallel.dev"
WHERE = f"--namespace={NAMESPACE}"
KINDS = (
    "all,secrets,leases,configmaps,serviceaccounts,roles,rolebindings,clusterroles,"
    "clusterrolebindings,"
    "customresourcedefinitions"
)


@contextlib.contextmanager
def running(cluster: handle.Cluster) -> Iterator[None]:
    """Equip a cluster in the body with both images, the operator, and a keeper of volumes."""
    for image in build.ensure(targets.TARGETS.values()):
        cluster.load_image(image.archive)
    keeper = volumes.Keeper(cluster)
    keeper.start()
    install(cluster)
    keeper.wait()
    yield
    if lifecycle.outlives_session(cluster):
        keeper.remove()
        uninstall(cluster)
        cluster.run_kubectl("delete", "crd", CRD)
        cluster.run_kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")


def install(cluster: handle.Cluster, *values: str, chart: Path = paths.CHART) -> None:
    """Install the chart with these values, or change it to them, and wait until it is ready."""
    flags = (WHERE, "--create-namespace", "--reset-values", "--wait", "--timeout=150s")
    settings = (f"--set={value}" for value in values)
    cluster.run_helm("upgrade", "--install", RELEASE, str(chart), *flags, *settings)


def uninstall(cluster: handle.Cluster) -> None:
    """Uninstall the chart and wait until its objects are gone."""
    cluster.run_helm("uninstall", RELEASE, WHERE, "--wait", "--timeout=150s")


def acting(cluster: handle.Cluster) -> str:
    """The name of the operator's pod that acts; empty while none does."""
    holder = "--output=jsonpath={.spec.holderIdentity}"
    return cluster.run_kubectl("get", "lease", RELEASE, WHERE, holder, "--ignore-not-found")


def owned(cluster: handle.Cluster) -> set[str]:
    """The objects of the release, wherever they are."""
    selector = f"--selector=app.kubernetes.io/instance={RELEASE}"
    listed = cluster.run_kubectl("get", KINDS, "--all-namespaces", selector, "--output=name")
    return set(listed.split())


def in_namespace(cluster: handle.Cluster) -> set[str]:
    """All that is in the operator's namespace, whoever made it."""
    return set(cluster.run_kubectl("get", KINDS.partition(",cluster")[0], WHERE, "-oname").split())


def example(name: str, file: str = "job.yaml") -> Path:
    """A file of an example."""
    return paths.EXAMPLES / name / file
