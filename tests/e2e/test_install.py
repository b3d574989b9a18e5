"""Installing with Helm or kustomize, and what uninstalling leaves."""

from collections.abc import Iterator

import pytest

from testing.cluster import handle
from testing.e2e import jobs, namespaces, operator

pytestmark = [pytest.mark.timeout(1800)]

STANDARD = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
DEFAULT_OVERLAY = operator.CHART.parents[1] / "manifests/overlays/default"


@pytest.fixture
def uninstalled(cluster: handle.Cluster) -> Iterator[handle.Cluster]:
    """The cluster without the operator, which is back afterwards."""
    operator.uninstall(cluster)
    yield cluster
    operator.install(cluster)


def test_uninstalling_leaves_nothing_but_the_crd(uninstalled: handle.Cluster) -> None:
    pods = uninstalled.run_kubectl("get", "pods", operator.WHERE, "--output=name")
    for pod in pods.split():
        uninstalled.run_kubectl("wait", "--for=delete", pod, operator.WHERE, "--timeout=60s")
    left = operator.owned(uninstalled)
    assert left == {f"customresourcedefinition.apiextensions.k8s.io/{operator.CRD}"}
    assert operator.in_namespace(uninstalled) <= STANDARD


def test_operator_of_some_namespaces_leaves_the_others_alone(
    cluster: handle.Cluster, make_namespace: namespaces.Make
) -> None:
    ours, others = make_namespace("ours"), make_namespace("others")
    hello = jobs.job("hello", tfReplicaSpecs={"Worker": jobs.script("print('hello')")})
    try:
        operator.install(cluster, f"watchNamespaces={{{ours.name}}}")
        others.apply(hello)
        ours.apply(hello)
        assert ours.wait_ended("hello")["status"]["state"] == "Succeeded"
        assert "status" not in others.job("hello")
        assert others.children("hello") == ""
    finally:
        operator.install(cluster)
    assert others.wait_ended("hello")["status"]["state"] == "Succeeded"


def test_kustomization_installs_an_operator_that_runs_jobs(
    uninstalled: handle.Cluster, namespace: namespaces.Namespace
) -> None:
    uninstalled.run_kubectl("apply", "--server-side", "--force-conflicts", f"-k{DEFAULT_OVERLAY}")
    try:
        deployment = ("deployment/tfparallel-operator", operator.WHERE)
        uninstalled.run_kubectl("rollout", "status", *deployment, "--timeout=120s")
        script = jobs.script("print('hello from', __import__('socket').gethostname())")
        namespace.apply(jobs.job("hello", tfReplicaSpecs={"Worker": script}))
        job = namespace.wait_ended("hello")
        assert job["status"]["state"] == "Succeeded", namespace.describe("hello")
        said = namespace.kubectl("logs", "hello-worker-0").strip()
        assert said == "hello from hello-worker-0"
    finally:
        _remove_kustomization(uninstalled)


def _remove_kustomization(cluster: handle.Cluster) -> None:
    """Remove what the kustomization made, but for the namespace and the CRD, which Helm shares."""
    kinds = "deployment,service,serviceaccount,role,rolebinding,secret,lease"
    selector = "--selector=app.kubernetes.io/name=tfparallel-operator"
    cluster.run_kubectl("delete", kinds, selector, operator.WHERE)
    cluster.run_kubectl("delete", "clusterrole,clusterrolebinding", selector)
