"""The API server takes what is rendered, and gives the operator the rights that it needs alone."""

import json
from collections.abc import Iterator

import pytest

from testing.cluster import console, handle, lifecycle, settings
from testing.operator import rendering

pytestmark = [pytest.mark.control_plane, pytest.mark.timeout(1200)]

ACCOUNT = f"system:serviceaccount:{rendering.NAMESPACE}:tfparallel-operator"
RELEASE = "tfparallel-operator"
WATCHED = "team-a"
NEEDED = [
    ("create", "tokenreviews.authentication.k8s.io", ""),
    ("get", "nodes", ""),
    ("list", "tfparalleljobs", WATCHED),
    ("watch", "tfparalleljobs", WATCHED),
    ("delete", "tfparalleljobs", WATCHED),
    ("patch", "tfparalleljobs/status", WATCHED),
    ("update", "tfparalleljobs/finalizers", WATCHED),
    *[(verb, "pods", WATCHED) for verb in ("get", "list", "watch", "create", "delete")],
    ("create", "services", WATCHED),
    ("create", "configmaps", WATCHED),
    ("watch", "networkpolicies", WATCHED),
    ("create", "networkpolicies", WATCHED),
    ("create", "events.events.k8s.io", WATCHED),
    ("get", "secrets/tfparallel-operator-tls", rendering.NAMESPACE),
    ("patch", "secrets/tfparallel-operator-tls", rendering.NAMESPACE),
    ("get", "leases.coordination.k8s.io/tfparallel-operator", rendering.NAMESPACE),
    ("patch", "leases.coordination.k8s.io/tfparallel-operator", rendering.NAMESPACE),
]
REFUSED = [
    ("get", "secrets/another", rendering.NAMESPACE),
    ("list", "secrets", rendering.NAMESPACE),
    ("delete", "secrets/tfparallel-operator-tls", rendering.NAMESPACE),
    ("create", "secrets", rendering.NAMESPACE),
    ("create", "secrets", WATCHED),
    ("get", "leases.coordination.k8s.io/another", rendering.NAMESPACE),
    ("create", "leases.coordination.k8s.io", rendering.NAMESPACE),
    ("delete", "leases.coordination.k8s.io/tfparallel-operator", rendering.NAMESPACE),
    ("patch", "leases.coordination.k8s.io/tfparallel-operator", WATCHED),
    ("get", "pods/log", WATCHED),
    ("create", "pods/exec", WATCHED),
    ("patch", "pods", WATCHED),
    ("delete", "networkpolicies", WATCHED),
    ("create", "tfparalleljobs", WATCHED),
    ("update", "tfparalleljobs", WATCHED),
    ("list", "customresourcedefinitions.apiextensions.k8s.io", ""),
    ("list", "nodes", ""),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[handle.Cluster]:
    """A control plane of its own with the chart installed for one watched namespace.

    The one that other tests share has the resource already, and the chart wants to bring it.
    """
    folder = tmp_path_factory.mktemp("charts") / "cluster"
    made = lifecycle.up("charts", settings.Light(), folder)
    try:
        for namespace in (rendering.NAMESPACE, WATCHED):
            made.run_kubectl("create", "namespace", namespace)
        watched = ("--set", f"watchNamespaces={{{WATCHED}}}")
        where = ("--namespace", rendering.NAMESPACE)
        made.run_helm("install", RELEASE, str(rendering.CHART), *where, *watched)
        yield made
    finally:
        lifecycle.down("charts", folder)


def _allowed(cluster: handle.Cluster, verb: str, resource: str, namespace: str) -> bool:
    kind, _, name = resource.partition("/")
    subresource = f"--subresource={name}" if name in {"status", "finalizers", "log", "exec"} else ""
    target = kind if subresource or not name else f"{kind}/{name}"
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    arguments = [part for part in (verb, target, subresource, where) if part]
    try:
        cluster.run_kubectl("auth", "can-i", *arguments, f"--as={ACCOUNT}", "--quiet")
    except console.ClusterError:
        return False
    return True


@pytest.mark.parametrize(("verb", "resource", "namespace"), NEEDED)
def test_needed_rights_are_given(
    cluster: handle.Cluster, verb: str, resource: str, namespace: str
) -> None:
    assert _allowed(cluster, verb, resource, namespace)


@pytest.mark.parametrize(("verb", "resource", "namespace"), REFUSED)
def test_other_rights_are_not(
    cluster: handle.Cluster, verb: str, resource: str, namespace: str
) -> None:
    assert not _allowed(cluster, verb, resource, namespace)


def test_jobs_of_other_namespaces_are_out_of_reach(cluster: handle.Cluster) -> None:
    for resource in ("tfparalleljobs", "pods", "configmaps", "networkpolicies"):
        assert not _allowed(cluster, "list", resource, "default")


def test_crd_is_established_with_its_columns(cluster: handle.Cluster) -> None:
    definition = json.loads(
        cluster.run_kubectl("get", "crd", "tfparalleljobs.tfparallel.dev", "--output=json")
    )
    conditions = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("overlay", ["default", "high-availability"])
def test_kustomization_passes_strict_validation(cluster: handle.Cluster, overlay: str) -> None:
    folder = str(rendering.ROOT / "manifests/overlays" / overlay)
    applied = cluster.run_kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--kustomize", folder
    )
    assert "deployment.apps/tfparallel-operator" in applied
    assert "customresourcedefinition.apiextensions.k8s.io/tfparalleljobs" in applied


@pytest.fixture
def with_nodes(light_cluster_with_nodes: handle.Cluster) -> Iterator[handle.Cluster]:
    """Nodes that pretend to run pods, with the chart installed as it is by default."""
    where = ("--namespace", rendering.NAMESPACE)
    flags = (*where, "--create-namespace", "--set", "crds.install=false,rbac.aggregate=false")
    light_cluster_with_nodes.run_helm("install", RELEASE, str(rendering.CHART), *flags)
    yield light_cluster_with_nodes
    light_cluster_with_nodes.run_helm("uninstall", RELEASE, *where)
    light_cluster_with_nodes.run_kubectl("delete", "namespace", rendering.NAMESPACE, "--wait=false")


def test_two_operators_are_ready_when_the_command_of_the_page_ends(
    with_nodes: handle.Cluster,
) -> None:
    page = (rendering.ROOT / "docs/availability.md").read_text(encoding="utf-8")
    block = page.partition("```console\n")[2].partition("```")[0]
    command = block.partition("\n$ kubectl")[0].replace("\\\n", " ").split()
    assert command[:3] == ["$", "helm", "upgrade"]
    chart = str(rendering.CHART.relative_to(rendering.ROOT))
    with_nodes.run_helm(*(str(rendering.CHART) if p == chart else p for p in command[2:]))

    def read(what: str) -> rendering.Manifest:
        where = ("--namespace", rendering.NAMESPACE, "--output=json")
        found: rendering.Manifest = json.loads(with_nodes.run_kubectl("get", what, *where))
        return found

    assert read(f"deployment/{RELEASE}")["status"]["readyReplicas"] == 2
    nodes = [pod["spec"]["nodeName"] for pod in read("pods")["items"]]
    assert len(set(nodes)) == len(nodes) == 2
    assert read(f"lease/{RELEASE}")["metadata"]["name"] == RELEASE
    assert read(f"poddisruptionbudget/{RELEASE}")["spec"]["maxUnavailable"] == 1
