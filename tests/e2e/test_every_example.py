"""Every example trains to its end in pods, by the command that its page shows."""

import json
from collections.abc import Iterator

import pytest
import yaml

from testing import invocation, paths, waiting
from testing.cluster import handle
from testing.e2e import kubectl_namespaces, volumes

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

SERVED = {"bucket", "requirements"}
"""test_served_examples.py trains them."""
UNINSTALLED = {"gang", "queue"}
"""test_waiting_examples.py trains them, on a cluster with their controllers."""
GPU_LABEL = "nvidia.com/gpu.product"
NAMES = sorted({file.parent.name for file in paths.example_jobs()} - SERVED - UNINSTALLED)
SECONDS = 900.0


@pytest.fixture
def jobs_namespace(
    example: str, make_namespace: kubectl_namespaces.Make
) -> kubectl_namespaces.KubectlNamespace:
    """A namespace that enforces the level restricted, with a volume for each claim."""
    namespace = make_namespace(example)
    for file in (paths.EXAMPLES / example).rglob("claim.yaml"):
        volumes.provide(namespace, yaml.safe_load(file.read_text())["metadata"]["name"])
    return namespace


@pytest.fixture
def classes(example: str, cluster: handle.Cluster) -> Iterator[None]:
    """Meanwhile nodes have the class of GPUs that the example asks for."""
    if example != "gpu-class":
        yield
        return
    cluster.run_kubectl("label", "nodes", "--all", f"{GPU_LABEL}=NVIDIA-L4")
    yield
    cluster.run_kubectl("label", "nodes", "--all", f"{GPU_LABEL}-")


def why(namespace: kubectl_namespaces.KubectlNamespace, job: str) -> str:
    """Return what `tfparallel why` prints, on one line."""
    where = invocation.where(namespace)
    done = invocation.run("why", job, *where, check=True)
    return " ".join(done.stdout.split())


def apply(namespace: kubectl_namespaces.KubectlNamespace, example: str) -> str:
    """Apply an example as its page does; return the name of its job."""
    namespace.kubectl("apply", f"--kustomize={paths.EXAMPLES / example}")
    [job] = json.loads(namespace.kubectl("get", "tfpj", "--output=json"))["items"]
    return str(job["metadata"]["name"])


def assert_succeeds(
    namespace: kubectl_namespaces.KubectlNamespace, job: str, failures: int = 0
) -> None:
    """Wait for the end of a job."""
    status = namespace.wait_ended(job, SECONDS)["status"]
    assert status["state"] == "Succeeded", namespace.describe(job)
    restarts = {"failure": failures, "disruption": 0}
    assert status["restarts"] == restarts, namespace.describe(job)


@pytest.mark.usefixtures("classes")
@pytest.mark.parametrize("example", NAMES)
def test_an_example_trains_in_pods(
    example: str, jobs_namespace: kubectl_namespaces.KubectlNamespace
) -> None:
    folder = paths.EXAMPLES / example
    data = folder / "data"
    if data.exists():
        jobs_namespace.kubectl("apply", f"--kustomize={data}")
        written = ("get", f"job/{example}-data", "--output=jsonpath={.status.succeeded}")
        waiting.until(lambda: jobs_namespace.kubectl(*written), f"the data of {example}", SECONDS)
    job = apply(jobs_namespace, example)
    assert_succeeds(jobs_namespace, job, failures=1 if example == "failure-policy" else 0)
    if example == "fine-tuning":
        second = f"--filename={folder / 'job.yaml'}"
        jobs_namespace.kubectl("apply", second)
        assert_succeeds(jobs_namespace, "fine-tuning")
        # A claim stays as long as a pod that has mounted it, even if it has ended.
        jobs_namespace.kubectl("delete", second)
    if data.exists():  # the pod that wrote them keeps their claim, too
        jobs_namespace.kubectl("delete", f"--kustomize={data}", "--wait=false")
    jobs_namespace.kubectl("delete", f"--kustomize={folder}", "--ignore-not-found")


def test_an_example_says_that_no_node_has_its_class(
    make_namespace: kubectl_namespaces.Make,
) -> None:
    namespace = make_namespace("no-class")
    volumes.provide(namespace, "gpu-class")
    job = apply(namespace, "gpu-class")

    def waits(status: kubectl_namespaces.Object) -> bool:
        return "selector" in status.get("replicas", {}).get("Worker", {}).get("reason", "")

    namespace.wait(job, waits)
    assert "Correct nodeSelector or nodeAffinity of the role, or label a node" in why(
        namespace, job
    )


def test_an_example_says_that_nothing_provides_its_volume(
    make_namespace: kubectl_namespaces.Make,
) -> None:
    namespace = make_namespace("no-volume")
    job = apply(namespace, "mixed-precision")

    def waits(status: kubectl_namespaces.Object) -> bool:
        return bool(status.get("replicas", {}).get("Worker", {}).get("reason"))

    namespace.wait(job, waits)
    answer = why(namespace, job)
    remedies = ("create it with a storageClassName that", "choose a storage class that provides")
    assert any(remedy in answer for remedy in remedies), answer
