"""Installing with Helm, and what uninstalling leaves."""

import pathlib
from collections.abc import Iterator

import pytest

from testing import waiting
from testing.cluster import console, handle
from testing.e2e import jobs, kubectl_namespaces, operator
from testing.operator import earlier
from tfparallel_operator.api import names

pytestmark = [pytest.mark.timeout(1800)]

STANDARD = {"configmap/kube-root-ca.crt", "serviceaccount/default"}


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


HELM_TEST_SECONDS = 600.0


def run_test(cluster: handle.Cluster) -> str:
    """What `helm test` prints, the log of its pod included."""
    flags = (operator.WHERE, "--logs", f"--timeout={HELM_TEST_SECONDS:.0f}s")
    return cluster.run_helm("test", operator.RELEASE, *flags, limit=HELM_TEST_SECONDS + 30)


def test_helm_test_trains_a_job_and_leaves_nothing(cluster: handle.Cluster) -> None:
    printed = run_test(cluster)
    assert "/tfparallel-operator-test is Succeeded" in printed
    assert "progress: step 4 of 4" in printed
    kinds = f"configmaps,pods,{names.PLURAL}"
    selector = "--selector=app.kubernetes.io/component=test"

    def left() -> str:
        return cluster.run_kubectl("get", kinds, operator.WHERE, selector, "--output=name")

    waiting.until(left, "the objects of the test are gone", when=lambda text: not text)


def test_helm_test_says_what_its_job_waits_for(cluster: handle.Cluster) -> None:
    test = f"{operator.RELEASE}-test"
    try:
        operator.install(cluster, "test.timeoutSeconds=45", "test.resources.requests.cpu=1000")
        with pytest.raises(console.ClusterError, match="failed"):
            run_test(cluster)
        log = cluster.run_kubectl("logs", test, operator.WHERE)
        assert "the job is" in log
        assert "Insufficient cpu" in log
    finally:
        operator.install(cluster)
        cluster.run_kubectl("delete", f"pod/{test}", operator.WHERE, "--ignore-not-found")


def test_a_job_trains_on_while_an_earlier_chart_is_upgraded_and_uninstalled(
    uninstalled: handle.Cluster,
    namespace: kubectl_namespaces.KubectlNamespace,
    tmp_path: pathlib.Path,
) -> None:
    operator.install(uninstalled, chart=earlier.unpack_chart(tmp_path))
    sleeps = "import pathlib, time\nwhile not pathlib.Path('/tmp/end').exists(): time.sleep(1)"
    namespace.apply(jobs.job("upgraded", tfReplicaSpecs={"Worker": jobs.script(sleeps)}))
    namespace.wait("upgraded", lambda status: status.get("state") == "Running")
    [before] = namespace.pods("upgraded").values()
    operator.install(uninstalled, "replicas=2")
    selector = "--selector=app.kubernetes.io/name=tfparallel-operator"
    pods = uninstalled.run_kubectl("get", "pods", operator.WHERE, selector, "--output=name").split()
    waiting.until(
        lambda: f"pod/{operator.acting(uninstalled)}",
        "one of the two operators acts",
        when=lambda pod: pod in pods,
    )
    operator.uninstall(uninstalled)
    assert namespace.job("upgraded")["status"]["state"] == "Running"
    namespace.kubectl("exec", "upgraded-worker-0", "--", "touch", "/tmp/end")
    operator.install(uninstalled)
    status = namespace.wait_ended("upgraded")["status"]
    assert status["state"] == "Succeeded", namespace.describe("upgraded")
    assert status["restarts"] == {"failure": 0, "disruption": 0}
    [after] = namespace.pods("upgraded").values()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
