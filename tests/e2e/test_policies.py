"""What the NetworkPolicy of a job does, in a network that enforces it.

Every test looks at connections that are made beside those that are not, from the same pod or to
the same port, so that nothing passes because nobody listens or because nothing is connected.
"""

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import yaml

from testing import waiting
from testing.cluster import handle
from testing.e2e import jobs, kubectl_namespaces, operator, volumes
from tfparallel_operator.api import names

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PORT = names.DEFAULT_PORT
STRANGER = "stranger"
LISTEN = f"""
import socket
server = socket.create_server(("", {PORT}), backlog=64)
while True:
    server.accept()[0].close()
"""
CONNECT = f"""
import json, socket, sys
reachable = {{}}
for name, address in json.loads(sys.argv[1]).items():
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port or {PORT})), timeout=3).close()
        reachable[name] = True
    except (ConnectionRefusedError, TimeoutError):
        reachable[name] = False
print(json.dumps(reachable))
"""
ENFORCED_SECONDS = 60.0
"""What the network takes at most to know a new pod, on a busy machine."""

EPOCHS = 40


@pytest.fixture(scope="module")
def cluster(full_cluster_with_policies: handle.Cluster) -> Iterator[handle.Cluster]:
    """The cluster of the end-to-end tests, but with a network that enforces policies."""
    with operator.running(full_cluster_with_policies):
        yield full_cluster_with_policies


@pytest.fixture(scope="module")
def make_namespace(cluster: handle.Cluster) -> Iterator[kubectl_namespaces.Make]:
    """Makes namespaces in it: without this one, that of other files would be used."""
    with kubectl_namespaces.maker(cluster) as make:
        yield make


@dataclass(frozen=True)
class Network:
    """Two isolated jobs, an open one, and a pod that is no job's, all listening on one port."""

    here: kubectl_namespaces.KubectlNamespace
    elsewhere: kubectl_namespaces.KubectlNamespace
    """Where another stranger is, with the labels of a job's pod."""

    addresses: dict[str, str]

    def reaches(self, pod: str, *others: str, where: str = "here") -> dict[str, bool]:
        """Which of the other pods take a connection from this one."""
        addresses = json.dumps({other: self.addresses[other] for other in others})
        namespace = self.here if where == "here" else self.elsewhere
        return connections(namespace, pod, addresses)


def connections(
    namespace: kubectl_namespaces.KubectlNamespace, pod: str, addresses: str
) -> dict[str, bool]:
    """Which addresses (JSON, by name), with their ports or ours, take a connection from a pod."""
    output = namespace.kubectl("exec", pod, "--", "python", "-c", CONNECT, addresses)
    reachable: dict[str, bool] = json.loads(output)
    return reachable


def wait_until_settled(look: Callable[[], dict[str, bool]], expected: dict[str, bool]) -> None:
    """Wait until connections are made and refused as expected, and see that it stays so."""
    what = f"connections as {expected}"
    waiting.until(
        look, what, ENFORCED_SECONDS, when=expected.__eq__, poll=kubectl_namespaces.POLL_SECONDS
    )
    for _ in range(3):
        assert look() == expected


def listening(name: str, **spec: object) -> kubectl_namespaces.Object:
    """A job whose replicas take connections, as TensorFlow's servers do."""
    roles = {"Chief": jobs.script(LISTEN), "Worker": jobs.script(LISTEN)}
    return jobs.job(name, tfReplicaSpecs=roles, **spec)


def stranger(**labels: str) -> kubectl_namespaces.Object:
    """A pod that belongs to no job and takes connections."""
    spec = jobs.script(LISTEN)["template"]["spec"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": STRANGER, "labels": labels},
        "spec": spec,
    }


@pytest.fixture(scope="module")
def pods_network(make_namespace: kubectl_namespaces.Make) -> Network:
    here, elsewhere = make_namespace("policies"), make_namespace("elsewhere")
    listens = listening("first"), listening("second"), listening("open", network="Open")
    here.apply(*listens, stranger())
    for job in ("first", "second", "open"):
        here.wait(job, lambda status: status.get("state") == "Running")
    elsewhere.apply(stranger(**here.pods("first")["first-worker-0"]["metadata"]["labels"]))
    for namespace in (here, elsewhere):
        namespace.kubectl("wait", "--for=condition=Ready", f"pod/{STRANGER}", "--timeout=120s")
    listed = json.loads(here.kubectl("get", "pods", "--output=json"))["items"]
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in listed}
    return Network(here, elsewhere, addresses)


def test_replicas_of_a_job_reach_each_other_and_whatever_has_no_policy(
    pods_network: Network,
) -> None:
    for pod, other in (("chief", "worker"), ("worker", "chief")):
        others = f"first-{other}-0", "open-chief-0", STRANGER
        reaches = functools.partial(pods_network.reaches, f"first-{pod}-0", *others)
        wait_until_settled(reaches, dict.fromkeys(others, True))


def test_a_stranger_reaches_no_replica_of_an_isolated_job(pods_network: Network) -> None:
    closed, to_all = ("first-chief-0", "first-worker-0", "second-chief-0"), "open-worker-0"
    expected = {**dict.fromkeys(closed, False), to_all: True}
    wait_until_settled(lambda: pods_network.reaches(STRANGER, *expected), expected)


def test_one_job_does_not_reach_another(pods_network: Network) -> None:
    expected = {"first-chief-0": False, "second-chief-0": True, STRANGER: True}
    wait_until_settled(lambda: pods_network.reaches("second-worker-0", *expected), expected)
    expected = {"first-chief-0": False, "open-chief-0": True}
    wait_until_settled(lambda: pods_network.reaches("open-worker-0", *expected), expected)


def test_the_labels_of_a_job_do_not_help_in_another_namespace(pods_network: Network) -> None:
    expected = {"first-chief-0": False, "open-chief-0": True, STRANGER: True}
    wait_until_settled(
        lambda: pods_network.reaches(STRANGER, *expected, where="elsewhere"), expected
    )


def test_everybody_reaches_an_open_job(pods_network: Network) -> None:
    expected = {"open-chief-0": True, "open-worker-0": True, "first-chief-0": False}
    wait_until_settled(lambda: pods_network.reaches(STRANGER, *expected), expected)


def test_a_policy_beside_it_lets_a_stranger_in(pods_network: Network) -> None:
    """As the docs have it for a metrics collector: policies add up."""
    let_in = {"podSelector": {"matchLabels": {"app": "collector"}}}
    rule = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "collector"},
        "spec": {
            "podSelector": {"matchLabels": {names.LABEL_JOB: "second"}},
            "ingress": [{"from": [let_in]}],
        },
    }
    expected = {"second-chief-0": True, "first-chief-0": False}
    pods_network.here.kubectl("label", "pod", STRANGER, "app=collector")
    pods_network.here.apply(rule)
    try:
        wait_until_settled(lambda: pods_network.reaches(STRANGER, *expected), expected)
    finally:
        pods_network.here.kubectl("delete", "networkpolicy", "collector")
        pods_network.here.kubectl("label", "pod", STRANGER, "app-")
    expected = {"second-chief-0": False, "open-chief-0": True}
    wait_until_settled(lambda: pods_network.reaches(STRANGER, *expected), expected)


def test_pods_of_jobs_alone_report_to_the_operator(
    cluster: handle.Cluster, pods_network: Network
) -> None:
    """Nobody but the kubelet reaches the port of probes and metrics: the operator stays ready."""
    selector = "--selector=app.kubernetes.io/component=operator"
    address = cluster.run_kubectl(
        "get", "pods", operator.WHERE, selector, "--output=jsonpath={.items[0].status.podIP}"
    )
    ports = json.dumps({"progress": f"{address}:8443", "health": f"{address}:8080"})
    reaches = functools.partial(connections, pods_network.here, addresses=ports)
    wait_until_settled(lambda: reaches(STRANGER), {"progress": True, "health": True})
    try:
        operator.install(cluster, "networkPolicy.enabled=true")
        wait_until_settled(lambda: reaches(STRANGER), {"progress": False, "health": False})
        wait_until_settled(lambda: reaches("first-chief-0"), {"progress": True, "health": False})
        operator.install(
            cluster,
            "networkPolicy.enabled=true",
            "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels."
            rf"kubernetes\.io/metadata\.name={pods_network.here.name}",
        )
        wait_until_settled(lambda: reaches(STRANGER), {"progress": False, "health": True})
    finally:
        operator.install(cluster)


@pytest.fixture
def digits(namespace: kubectl_namespaces.KubectlNamespace) -> kubectl_namespaces.KubectlNamespace:
    """The main example, long enough to be looked at."""
    volumes.make(namespace, "digits")
    module = f"--from-file={operator.example('digits', 'model.py')}"
    namespace.kubectl("create", "configmap", "digits", module)
    document = yaml.safe_load(operator.example("digits").read_text("utf-8"))
    document["spec"]["trainer"]["epochs"] = EPOCHS
    namespace.apply(document, stranger())
    return namespace


def test_a_job_trains_while_nobody_else_reaches_it(
    digits: kubectl_namespaces.KubectlNamespace,
) -> None:
    digits.wait("digits", lambda status: "step" in (status.get("progress") or {}))
    address = digits.pods("digits")["digits-chief-0"]["status"]["podIP"]
    addresses = json.dumps({"chief": address})
    wait_until_settled(lambda: connections(digits, STRANGER, addresses), {"chief": False})
    assert connections(digits, "digits-worker-0", addresses) == {"chief": True}
    assert digits.job("digits")["status"]["state"] == "Running"
    status = digits.wait_ended("digits")["status"]
    assert status["state"] == "Succeeded", digits.describe("digits")
    assert status["restarts"] == {"failure": 0, "disruption": 0}
    progress = status["progress"]
    assert (progress["epoch"], progress["step"]) == (EPOCHS, progress["totalSteps"])
    assert float(progress["metrics"]["loss"]) < 0.5
