"""Jobs in queues of the real Kueue, whose build takes minutes.

Two nodes of four GPUs each, which pretend to run pods; quota for four GPUs, on the nodes of one
flavor.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testing import paths, waiting
from testing.cluster import handle
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

pytestmark = [pytest.mark.timeout(1200)]

QUEUE = "research"
NODE = "gpu-node-1"
SECONDS = 60
"""How long Kueue and the operator may take for one step: seconds, on a busy machine."""

FLAVOR: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "fast"},
    "spec": {
        "nodeLabels": {"kubernetes.io/hostname": NODE},
        "tolerations": [{"key": "fast", "operator": "Exists"}],
    },
}
CLUSTER_QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ClusterQueue",
    "metadata": {"name": "gpus"},
    "spec": {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {
                "coveredResources": ["nvidia.com/gpu"],
                "flavors": [
                    {
                        "name": "fast",
                        "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 4}],
                    }
                ],
            }
        ],
    },
}
URGENT = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
    "description": "goes first",
}


@pytest.fixture(scope="module")
def cluster(kueue_cluster: handle.Cluster) -> handle.Cluster:
    """Two nodes of four GPUs, Kueue, and quota for four."""
    namespaces.install(kueue_cluster)
    for manifest in (FLAVOR, CLUSTER_QUEUE, URGENT):
        kueue_cluster.run_kubectl("apply", "-f", "-", input=json.dumps(manifest))
    return kueue_cluster


@pytest.fixture
async def namespace(cluster: handle.Cluster) -> AsyncIterator[Namespace]:
    """A namespace of the test's own with a queue, empty of pods before and after."""
    async with namespaces.open_in(cluster) as namespace:
        queue = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": QUEUE, "namespace": namespace.name},
            "spec": {"clusterQueue": "gpus"},
        }
        namespace.kubectl("create", "-f", "-", body=queue)
        yield namespace
    namespace.kubectl("delete", "workloads", "--all")  # Else they hold their quota for a while.


def queued(name: str = "digits", priority: str | None = None) -> namespaces.Body:
    """Return a job whose workers need two GPUs each: there is quota for two."""
    job = objects.job(name, workers=0)
    template = objects.template()
    template["spec"]["tolerations"] = [{"key": "mine", "operator": "Exists"}]
    worker = {"replicas": 2, "devices": 2, "template": template}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    job["metadata"]["labels"] = {names.LABEL_QUEUE: QUEUE}
    if priority is not None:
        job["metadata"]["labels"][names.LABEL_WORKLOAD_PRIORITY] = priority
    return job


async def workload(namespace: Namespace, name: str = "digits") -> dict[str, Any]:
    """Return a job's Workload."""
    served = await namespace.api.served(resources.WORKLOADS)
    return await namespace.api.get(served.path(namespace.name, f"tfparalleljob-{name}"))


async def conditions(namespace: Namespace, name: str = "digits") -> dict[str, tuple[str, str]]:
    """Return the conditions of a job's Workload: status and reason."""
    entries = (await workload(namespace, name)).get("status", {}).get("conditions", ())
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in entries}


async def until_admission(
    namespace: Namespace, status: str, sentence: str, name: str = "digits"
) -> dict[str, Any]:
    """Wait until the job's condition Admitted has a status and says something; return it."""
    return await waiting.until_async(
        lambda: namespace.condition("Admitted", name),
        f"Admitted of {name} is {status} and says {sentence!r}",
        when=lambda condition: (
            condition.get("status") == status and sentence in condition.get("message", "")
        ),
    )


async def pods_of(namespace: Namespace, name: str) -> set[str]:
    """Return the names of a job's pods."""
    return {pod for pod in await namespace.pods() if pod.startswith(f"{name}-")}


async def test_the_example_is_admitted_by_its_queue(cluster: handle.Cluster) -> None:
    async with namespaces.open_in(cluster) as namespace, namespace.operator():
        namespace.kubectl("apply", f"--kustomize={paths.EXAMPLES / 'queue/quota'}")
        namespace.kubectl("apply", f"--kustomize={paths.EXAMPLES / 'queue'}")
        await until_admission(namespace, "True", "admitted by ClusterQueue research", "queue")
        await namespace.until_pods("queue-worker-0", "queue-worker-1")
        namespace.kubectl("delete", f"--kustomize={paths.EXAMPLES / 'queue'}")
        namespace.kubectl("delete", "workloads", "--all")
        namespace.kubectl("delete", f"--kustomize={paths.EXAMPLES / 'queue/quota'}")


async def test_it_is_admitted_and_its_pods_run_where_the_quota_is(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(queued())
        await namespace.until_state("Running")
        admission = await until_admission(namespace, "True", "admitted by ClusterQueue gpus")
        assert admission["reason"] == names.Reason.JOB_ADMITTED
        for pod in (await namespace.pods()).values():
            assert pod["spec"]["nodeName"] == NODE
            assert pod["spec"]["nodeSelector"] == FLAVOR["spec"]["nodeLabels"]
            keys = {toleration.get("key") for toleration in pod["spec"]["tolerations"]}
            assert {"mine", "fast"} <= keys
            assert pod["metadata"]["labels"][names.LABEL_POD_SET] == "worker"

        async def ready() -> bool:
            return (await conditions(namespace)).get("PodsReady") == ("True", "Started")

        await waiting.until_async(ready, "Kueue knows that the pods run", SECONDS)
        spec = (await workload(namespace))["spec"]
        assert spec["priority"] == 0
        for worker in range(2):
            await namespace.end(f"digits-worker-{worker}", 0)
        await namespace.until_state("Succeeded")

        async def finished() -> bool:
            return (await conditions(namespace)).get("Finished") == ("True", "Succeeded")

        await waiting.until_async(finished, "Kueue knows that the job has ended", SECONDS)


async def test_it_waits_for_quota_and_starts_when_another_job_has_ended(
    namespace: Namespace,
) -> None:
    async with namespace.operator():
        await namespace.create_job(queued("first"))
        await namespace.until_state("Running", "first")
        await namespace.create_job(queued("second"))
        admission = await until_admission(namespace, "False", "insufficient unused quota", "second")
        assert admission["reason"] == names.Reason.JOB_QUEUED
        assert await pods_of(namespace, "second") == set()
        assert (await namespace.status("second"))["state"] == "Pending"
        for worker in range(2):
            await namespace.end(f"first-worker-{worker}", 0)
        await namespace.until_state("Succeeded", "first")
        await namespace.until_state("Running", "second")


async def test_preempted_by_a_job_of_higher_priority_it_is_admitted_again(
    namespace: Namespace,
) -> None:
    async with namespace.operator():
        await namespace.create_job(queued("low"))
        await namespace.until_state("Running", "low")
        await namespace.create_job(queued("high", "urgent"))
        await namespace.until_state("Running", "high")
        assert (await workload(namespace, "high"))["spec"]["priority"] == 1000
        assert await pods_of(namespace, "low") == set()
        await until_admission(namespace, "False", "Preempted", "low")
        conditions_of_low = await conditions(namespace, "low")
        assert conditions_of_low["Requeued"] == ("True", "Preempted")
        assert conditions_of_low["QuotaReserved"][0] == "False"
        status = await namespace.status("low")
        assert (status["state"], status["attempt"]) == ("Pending", 1)
        assert status["restarts"] == {"failure": 0, "disruption": 1}
        for worker in range(2):
            await namespace.end(f"high-worker-{worker}", 0)
        await namespace.until_state("Running", "low")
        assert (await namespace.status("low"))["attempt"] == 2
        assert (await conditions(namespace, "low"))["Evicted"][0] == "False"


async def test_restarts_keep_the_quota_and_a_suspended_job_gives_it_to_the_next(
    namespace: Namespace,
) -> None:
    async with namespace.operator():
        await namespace.create_job(queued("first"))
        await namespace.until_state("Running", "first")
        await namespace.create_job(queued("second"))
        await until_admission(namespace, "False", "insufficient unused quota", "second")
        uid = (await workload(namespace, "first"))["metadata"]["uid"]
        await namespace.end("first-worker-1", 1)
        await namespace.until_status(
            "the first runs again",
            lambda now: (now["attempt"], now["state"]) == (2, "Running"),
            "first",
        )
        assert (await workload(namespace, "first"))["metadata"]["uid"] == uid
        assert await pods_of(namespace, "second") == set()
        namespace.change({"runPolicy": {"suspend": True}}, "first")
        await namespace.until_state("Running", "second")
        assert await pods_of(namespace, "first") == set()


async def test_a_workload_that_is_stopped_and_let_again_runs_in_a_new_attempt(
    namespace: Namespace,
) -> None:
    name = "workload/tfparalleljob-digits"
    async with namespace.operator():
        await namespace.create_job(queued())
        await namespace.until_state("Running")
        namespace.kubectl("patch", name, "--type=merge", "-p", '{"spec": {"active": false}}')
        await until_admission(namespace, "False", "spec.active is false")

        async def given_back() -> bool:
            return (await conditions(namespace))["QuotaReserved"][0] == "False"

        await waiting.until_async(given_back, "the quota is given back", SECONDS)
        assert await namespace.pods() == {}
        namespace.kubectl("patch", name, "--type=merge", "-p", '{"spec": {"active": true}}')
        await namespace.until_state("Running")
        assert (await namespace.status())["attempt"] == 2


async def test_a_completed_worker_of_servers_gives_its_quota_to_the_next_job(
    namespace: Namespace,
) -> None:
    job = queued("first")
    roles = job["spec"]["tfReplicaSpecs"]
    roles["PS"] = {"replicas": 1, "template": objects.template()}
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Running", "first")
        second = queued("second")
        second["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 1
        await namespace.create_job(second)
        await until_admission(namespace, "False", "insufficient unused quota", "second")
        await namespace.end("first-worker-1", 0)
        await namespace.until_state("Running", "second")
        assert (await namespace.status("first"))["state"] == "Running"
        status = (await workload(namespace, "first"))["status"]
        assert status["reclaimablePods"] == [{"name": "worker", "count": 1}]


async def test_scaled_beyond_its_quota_it_waits_with_its_new_size(namespace: Namespace) -> None:
    job = queued()
    job["spec"]["tfReplicaSpecs"]["Worker"] |= {"minReplicas": 1, "maxReplicas": 4}
    job["spec"]["runPolicy"] = {"scaleCooldownSeconds": 0}
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Running")
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=3")
        await until_admission(namespace, "False", "insufficient quota")
        assert await namespace.pods() == {}
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=1")
        await namespace.until_state("Running")
        assert set(await namespace.pods()) == {"digits-worker-0"}


async def test_the_priority_class_of_the_pods_counts_and_a_missing_one_is_reported(
    namespace: Namespace,
) -> None:
    job = queued(priority="absent")
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_refused(names.Reason.PRIORITY_CLASS_NOT_FOUND)
        low = queued("low")
        template = low["spec"]["tfReplicaSpecs"]["Worker"]["template"]
        template["spec"]["priorityClassName"] = "system-cluster-critical"
        await namespace.create_job(low)
        await namespace.until_state("Running", "low")
        spec = (await workload(namespace, "low"))["spec"]
        assert spec["priority"] == 2_000_000_000
        assert spec["priorityClassRef"]["group"] == "scheduling.k8s.io"
