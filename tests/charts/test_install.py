"""The API server takes what is rendered, and gives the operator the rights that it needs alone."""

import json
from collections.abc import Iterator

import pytest

from testing import pages, paths
from testing.cluster import handle
from testing.operator import rendering

pytestmark = [pytest.mark.timeout(1200)]

ACCOUNT = f"system:serviceaccount:{rendering.NAMESPACE}:tfparallel-operator"
RELEASE = "tfparallel-operator"
WATCHED = "team-a"
SUBRESOURCES = {"status", "finalizers", "log", "exec"}

Right = tuple[str, str, str]
"""Verb, resource with its group and name or subresource, namespace."""

NEEDED = [
    ("create", "tokenreviews.authentication.k8s.io", ""),
    ("get", "nodes", ""),
    ("list", "tfparalleljobs.tfparallel.dev", WATCHED),
    ("watch", "tfparalleljobs.tfparallel.dev", WATCHED),
    ("delete", "tfparalleljobs.tfparallel.dev", WATCHED),
    ("patch", "tfparalleljobs.tfparallel.dev/status", WATCHED),
    ("update", "tfparalleljobs.tfparallel.dev/finalizers", WATCHED),
    *[(verb, "pods", WATCHED) for verb in ("get", "list", "watch", "create", "delete")],
    ("create", "services", WATCHED),
    ("create", "configmaps", WATCHED),
    ("watch", "networkpolicies.networking.k8s.io", WATCHED),
    ("create", "networkpolicies.networking.k8s.io", WATCHED),
    ("get", "persistentvolumeclaims", WATCHED),
    ("create", "persistentvolumeclaims", WATCHED),
    ("create", "events", WATCHED),
    ("list", "events.events.k8s.io", WATCHED),
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
    ("delete", "configmaps", WATCHED),
    ("delete", "services", WATCHED),
    ("delete", "networkpolicies.networking.k8s.io", WATCHED),
    ("delete", "persistentvolumeclaims", WATCHED),
    ("patch", "persistentvolumeclaims", WATCHED),
    ("create", "tfparalleljobs.tfparallel.dev", WATCHED),
    ("update", "tfparalleljobs.tfparallel.dev", WATCHED),
    ("list", "customresourcedefinitions.apiextensions.k8s.io", ""),
    ("list", "nodes", ""),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
    *[
        ("list", resource, "default")
        for resource in (
            "tfparalleljobs.tfparallel.dev",
            "pods",
            "configmaps",
            "networkpolicies.networking.k8s.io",
        )
    ],
]


@pytest.fixture(scope="module")
def cluster(chart_cluster: handle.Cluster) -> handle.Cluster:
    """The chart is installed for one watched namespace.

    The cluster that other tests share has the resource already, and the chart wants to bring it.
    """
    for namespace in (rendering.NAMESPACE, WATCHED):
        chart_cluster.run_kubectl("create", "namespace", namespace)
    watched = ("--set", f"watchNamespaces={{{WATCHED}}}")
    where = ("--namespace", rendering.NAMESPACE)
    chart_cluster.run_helm("install", RELEASE, str(paths.CHART), *where, *watched)
    return chart_cluster


@pytest.fixture(scope="module")
def allowed(cluster: handle.Cluster) -> dict[Right, bool]:
    """Which rights the operator has, by one question to the API server about all of them."""
    rights = [*NEEDED, *REFUSED]
    reviews = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [_review(*right) for right in rights],
    }
    arguments = ("create", "--filename=-", "--output=jsonpath={.status.allowed} ")
    answers = cluster.run_kubectl(*arguments, input=json.dumps(reviews)).split()
    assert {*answers} <= {"true", "false"}
    return {right: answer == "true" for right, answer in zip(rights, answers, strict=True)}


def _review(verb: str, resource: str, namespace: str) -> rendering.Manifest:
    kind, _, name = resource.partition("/")
    plural, _, group = kind.partition(".")
    attributes = {"verb": verb, "resource": plural, "group": group, "namespace": namespace}
    attributes["subresource" if name in SUBRESOURCES else "name"] = name
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
    }


@pytest.mark.parametrize("right", NEEDED)
def test_needed_rights_are_granted(allowed: dict[Right, bool], right: Right) -> None:
    assert allowed[right]


@pytest.mark.parametrize("right", REFUSED)
def test_other_rights_are_not(allowed: dict[Right, bool], right: Right) -> None:
    assert not allowed[right]


def test_crd_is_established_with_its_columns(cluster: handle.Cluster) -> None:
    cluster.wait_established("tfparalleljobs.tfparallel.dev")
    definition = json.loads(
        cluster.run_kubectl("get", "crd", "tfparalleljobs.tfparallel.dev", "--output=json")
    )
    assert "NonStructuralSchema" not in {c["type"] for c in definition["status"]["conditions"]}


def _may_ask_whose_tokens(cluster: handle.Cluster, *namespaces: str) -> list[bool]:
    """Whether the operators of these namespaces have the right that belongs to no namespace."""
    asked = []
    for namespace in namespaces:
        review = _review("create", "tokenreviews.authentication.k8s.io", "")
        review["spec"]["user"] = f"system:serviceaccount:{namespace}:{RELEASE}"
        flags = ("--filename=-", "--output=jsonpath={.status.allowed}")
        answer = cluster.run_kubectl("create", *flags, input=json.dumps(review))
        asked.append(answer == "true")
    return asked


def test_installations_of_one_name_live_next_to_each_other(cluster: handle.Cluster) -> None:
    """One by Helm, and one by `helm template | kubectl apply`, as GitOps does it."""

    def values(namespace: str) -> tuple[str, ...]:
        settings = ("--set", f"watchNamespaces={{{namespace}}}", "--set", "crds.install=false")
        return (RELEASE, str(paths.CHART), "--namespace", namespace, *settings)

    everyone = (rendering.NAMESPACE, "team-b", "team-c")
    for namespace in everyone[1:]:
        cluster.run_kubectl("create", "namespace", namespace)
    cluster.run_helm("install", *values("team-b"))
    text = cluster.run_helm("template", *values("team-c"), "--skip-tests")
    cluster.run_kubectl("apply", "--filename=-", input=text)
    assert _may_ask_whose_tokens(cluster, *everyone) == [True, True, True]
    cluster.run_kubectl("delete", "--filename=-", input=text)
    cluster.run_helm("uninstall", RELEASE, "--namespace=team-b")
    assert _may_ask_whose_tokens(cluster, *everyone) == [True, False, False]


def test_a_definition_of_another_release_is_taken_over_as_the_page_says(
    cluster: handle.Cluster,
) -> None:
    page = paths.PAGES / "operate/install.md"
    [command] = pages.find_commands(page, "helm upgrade --install")
    chart = str(paths.CHART.relative_to(paths.ROOT))
    arguments = [str(paths.CHART) if word == chart else word for word in command.line.split()[1:]]
    assert arguments.pop() == "--take-ownership"
    where = arguments.index("--namespace") + 1
    arguments[where] = "team-d"
    arguments.append("--set=rbac.create=false,rbac.aggregate=false")
    with pytest.raises(Exception, match=r"cannot be imported into the current release"):
        cluster.run_helm(*arguments)
    cluster.run_helm(*arguments, "--take-ownership")
    owner = r"--output=jsonpath={.metadata.annotations.meta\.helm\.sh/release-namespace}"
    definition = ("get", "crd/tfparalleljobs.tfparallel.dev", owner)
    assert cluster.run_kubectl(*definition) == "team-d"
    cluster.run_helm("uninstall", RELEASE, "--namespace=team-d")
    assert cluster.run_kubectl(*definition) == "team-d"  # It is kept, with all jobs.


@pytest.mark.parametrize("overlay", ["default", "high-availability", "namespaced"])
def test_kustomization_passes_strict_validation(cluster: handle.Cluster, overlay: str) -> None:
    folder = str(paths.ROOT / "manifests/overlays" / overlay)
    applied = cluster.run_kubectl(
        "apply", "--dry-run=server", "--validate=strict", "--kustomize", folder
    )
    assert "deployment.apps/tfparallel-operator" in applied
    definition = "customresourcedefinition.apiextensions.k8s.io/tfparalleljobs"
    assert (definition in applied) == (overlay != "namespaced")


def test_optional_objects_and_those_of_helm_test_pass_strict_validation(
    cluster: handle.Cluster,
) -> None:
    values = ("networkPolicy.enabled=true", "metrics.dashboard.enabled=true", "replicas=2")
    shown = ("networkpolicy", "dashboard", "poddisruptionbudget", "tests/train")
    settings = (f"--set={value}" for value in (*values, f"watchNamespaces={{{WATCHED}}}"))
    templates = (f"--show-only=templates/{name}.yaml" for name in shown)
    where = ("--namespace", rendering.NAMESPACE)
    chart = (RELEASE, str(paths.CHART), *where)
    text = cluster.run_helm("template", *chart, *settings, *templates)
    flags = ("--dry-run=server", "--validate=strict", "--output=name", "--filename=-")
    assert {*cluster.run_kubectl("apply", *flags, input=text).split()} == {
        f"networkpolicy.networking.k8s.io/{RELEASE}",
        f"poddisruptionbudget.policy/{RELEASE}",
        f"configmap/{RELEASE}-dashboard",
        f"configmap/{RELEASE}-test",
        f"pod/{RELEASE}-test",
        f"tfparalleljob.tfparallel.dev/{RELEASE}-test",
    }


@pytest.mark.parametrize("example", sorted({file.parent.name for file in paths.example_jobs()}))
def test_an_example_passes_strict_validation(cluster: handle.Cluster, example: str) -> None:
    flags = ("--dry-run=server", "--validate=strict", "--output=name")
    folder = paths.EXAMPLES / example
    applied = cluster.run_kubectl("apply", *flags, "--kustomize", str(folder)).split()
    blocks = pages.blocks(folder / "README.md", "console")
    commands = [command for block in blocks for command in pages.commands(block)]
    apply = f"kubectl apply -k examples/{example}"
    [shown] = [command.shown for command in commands if command.line == apply]
    assert [line.rpartition(" ")[0] for line in shown] == applied
    files = [f"--filename={file}" for file in paths.example_jobs(example)]
    assert len(cluster.run_kubectl("apply", *flags, *files).split()) == len(files)


@pytest.fixture
def with_nodes(light_cluster_with_nodes: handle.Cluster) -> Iterator[handle.Cluster]:
    """Nodes that pretend to run pods, with the chart installed as it is by default."""
    where = ("--namespace", rendering.NAMESPACE)
    flags = (*where, "--create-namespace", "--set", "crds.install=false,rbac.aggregate=false")
    light_cluster_with_nodes.run_helm("install", RELEASE, str(paths.CHART), *flags)
    yield light_cluster_with_nodes
    light_cluster_with_nodes.run_helm("uninstall", RELEASE, *where)
    light_cluster_with_nodes.run_kubectl("delete", "namespace", rendering.NAMESPACE, "--wait=false")


def test_two_operators_are_ready_when_the_command_of_the_page_ends(
    with_nodes: handle.Cluster,
) -> None:
    page = (paths.ROOT / "docs/operate/availability.md").read_text(encoding="utf-8")
    block = page.partition("```console\n")[2].partition("```")[0]
    command = block.partition("\n$ kubectl")[0].replace("\\\n", " ").split()
    assert command[:3] == ["$", "helm", "upgrade"]
    chart = str(paths.CHART.relative_to(paths.ROOT))
    with_nodes.run_helm(*(str(paths.CHART) if p == chart else p for p in command[2:]))

    def read(what: str) -> rendering.Manifest:
        where = ("--namespace", rendering.NAMESPACE, "--output=json")
        served_object: rendering.Manifest = json.loads(with_nodes.run_kubectl("get", what, *where))
        return served_object

    assert read(f"deployment/{RELEASE}")["status"]["readyReplicas"] == 2
    nodes = [pod["spec"]["nodeName"] for pod in read("pods")["items"]]
    assert len(set(nodes)) == len(nodes) == 2
    assert read(f"lease/{RELEASE}")["metadata"]["name"] == RELEASE
    assert read(f"poddisruptionbudget/{RELEASE}")["spec"]["maxUnavailable"] == 1
