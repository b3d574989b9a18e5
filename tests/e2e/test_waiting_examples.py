"""The examples of gangs and queues train in pods, on a cluster with what they wait for."""

from collections.abc import Iterator

import pytest

from testing import paths
from testing.cluster import handle
from testing.e2e import kubectl_namespaces, operator, volumes

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SECONDS = 900.0


@pytest.fixture(scope="module")
def cluster(full_cluster_with_queues: handle.Cluster) -> Iterator[handle.Cluster]:
    """The cluster of the end-to-end tests, but with Kueue and the scheduler-plugins."""
    with operator.running(full_cluster_with_queues):
        yield full_cluster_with_queues


@pytest.fixture(scope="module")
def make_namespace(cluster: handle.Cluster) -> Iterator[kubectl_namespaces.Make]:
    """Makes namespaces in it: without this one, that of other files would be used."""
    with kubectl_namespaces.maker(cluster) as make:
        yield make


def train(
    namespace: kubectl_namespaces.KubectlNamespace, example: str
) -> kubectl_namespaces.Object:
    """Apply an example as its page does, and return the status of its job at the end."""
    volumes.provide(namespace, example)
    namespace.kubectl("apply", f"--kustomize={paths.EXAMPLES / example}")
    status: kubectl_namespaces.Object = namespace.wait_ended(example, SECONDS)["status"]
    assert status["state"] == "Succeeded", namespace.describe(example)
    return status


def test_a_gang_of_the_scheduler_plugins_trains(make_namespace: kubectl_namespaces.Make) -> None:
    namespace = make_namespace("gang")
    train(namespace, "gang")
    pods = namespace.pods("gang")
    assert {pod["spec"]["schedulerName"] for pod in pods.values()} == {
        "scheduler-plugins-scheduler"
    }


def test_a_job_in_a_queue_trains_when_it_is_admitted(
    make_namespace: kubectl_namespaces.Make,
) -> None:
    namespace = make_namespace("queue")
    namespace.kubectl("apply", f"--kustomize={paths.EXAMPLES / 'queue/quota'}")
    status = train(namespace, "queue")
    reasons = {condition["type"]: condition["reason"] for condition in status["conditions"]}
    assert reasons["Admitted"] == "JobFinished"
    workload = namespace.kubectl(
        "get", "workloads", "--output=jsonpath={.items[*].status.conditions[*].type}"
    )
    assert {"Admitted", "Finished"} <= {*workload.split()}
