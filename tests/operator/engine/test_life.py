"""The operator on a real API server, the test being the kubelet."""

import asyncio
import collections
import datetime
import json
from typing import Any

from testing import waiting
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import errors, resources

ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")


async def test_a_job_goes_from_pending_to_running_to_succeeded(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job()
        pods = await namespace.until_pods(*ALL)
        _check_pod(pods["digits-worker-1"], namespace.name)
        assert (await namespace.until_state("Pending"))["ready"] == "0/3"
        await namespace.run_all()
        assert (await namespace.until_state("Running"))["ready"] == "3/3"
        shown = namespace.kubectl("get", "tfpj", "digits").splitlines()[1].split()
        assert shown[:4] == ["digits", "Running", "MultiWorkerMirrored", "3/3"]
        await namespace.end("digits-chief-0", 0)
        status = await namespace.until_state("Succeeded")
        assert status["completionTime"]
        await namespace.until_pods("digits-chief-0")
        events = await namespace.api.list(resources.EVENTS, namespace.name)
        reasons = {event["reason"] for event in events.items}
        assert reasons == {"JobStarted", "ReplicasRunning", "ChiefSucceeded"}
        assert {event["regarding"]["name"] for event in events.items} == {"digits"}


def _check_pod(pod: dict[str, Any], namespace: str) -> None:
    labels = pod["metadata"]["labels"]
    assert labels[names.LABEL_MANAGED_BY] == names.MANAGED_BY
    assert labels[names.LABEL_JOB] == "digits"
    assert labels[names.LABEL_ROLE] == "worker"
    assert labels[names.LABEL_INDEX] == "1"
    assert labels[names.LABEL_ATTEMPT] == "1"
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == (names.KIND, "digits", True)
    [container] = pod["spec"]["containers"]
    variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert json.loads(variables["TF_CONFIG"]) == {
        "cluster": {
            "chief": ["digits-chief-0.digits:2222"],
            "worker": ["digits-worker-0.digits:2222", "digits-worker-1.digits:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }
    assert pod["spec"]["hostname"] == "digits-worker-1"
    assert pod["spec"]["subdomain"] == "digits"
    assert pod["metadata"]["namespace"] == namespace


async def test_a_job_that_is_applied_again_goes_on_as_it_is(namespace: Namespace) -> None:
    """As tools do that compare a cluster with a repository, in each of their ways."""
    file, job = ("-f", "-"), objects.job()
    namespace.kubectl("apply", *file, body=job)
    async with namespace.operator():
        pods = await namespace.run_pods(*ALL)
        for options in ((), ("--server-side", "--force-conflicts")):
            namespace.kubectl("apply", *options, *file, body=job)
            assert namespace.kubectl("diff", *options, *file, body=job) == ""
        namespace.kubectl("replace", *file, body=job)
        stored = await namespace.job()
        await namespace.end("digits-chief-0", 0)
        await namespace.until_state("Succeeded")
        [left] = (await namespace.until_pods("digits-chief-0")).values()
    assert (stored["metadata"]["generation"], stored["status"]["attempt"]) == (1, 1)
    assert left["metadata"]["uid"] == pods["digits-chief-0"]["metadata"]["uid"]


DOWN = {
    "apiVersion": "apiregistration.k8s.io/v1",
    "kind": "APIService",
    "metadata": {"name": "v1beta1.metrics.k8s.io"},
    "spec": {
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "service": {"name": "metrics-server", "namespace": "kube-system"},
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
    },
}
"""A part of the API whose server is not there."""


async def test_an_operator_starts_while_a_part_of_the_api_is_down(namespace: Namespace) -> None:
    path = "/apis/metrics.k8s.io/v1beta1"

    async def is_down() -> bool:
        try:
            await namespace.api.get(path)
        except errors.ApiError as error:
            return isinstance(error, errors.Unavailable)
        return False

    namespace.kubectl("apply", "-f", "-", body=DOWN)
    try:
        await waiting.until_async(is_down, "the API server asks in vain")
        async with namespace.operator():
            await namespace.create_job()
            await namespace.until_pods(*ALL)
    finally:
        namespace.kubectl("delete", "apiservice", "v1beta1.metrics.k8s.io")


async def test_a_pod_that_somebody_deletes_is_a_disruption(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job()
        await namespace.run_pods(*ALL)
        namespace.kubectl("delete", "pod", "digits-worker-1", "--grace-period=0", "--force")
        await namespace.until_pods(*ALL, attempt=2)
        assert (await namespace.status())["restarts"] == {"failure": 0, "disruption": 1}


async def test_a_service_of_that_name_which_is_not_ours_is_a_condition(
    namespace: Namespace,
) -> None:
    namespace.kubectl("create", "service", "clusterip", "digits", "--tcp=80")
    async with namespace.operator():
        await namespace.create_job()
        refused = await namespace.until_refused(names.Reason.NAME_CONFLICT)
        assert "`kubectl delete service/digits`" in refused["message"]
        assert await namespace.pods() == {}
        namespace.kubectl("delete", "service", "digits")
        await namespace.until_pods(*ALL)
        await namespace.until_let_through()


async def test_two_namespaces_are_watched_and_no_third(namespace: Namespace, cluster: Any) -> None:
    others = [Namespace(namespace.api, cluster, f"{namespace.name}-{n}") for n in (1, 2)]
    for other in others:
        await other.create_namespace()
    watched = (namespace.name, others[0].name)
    async with namespace.operator(watch_namespaces=watched):
        for where in (namespace, *others):
            await where.create_job(objects.job(workers=0))
        await namespace.until_pods("digits-chief-0")
        await others[0].until_pods("digits-chief-0")
        assert await others[1].pods() == {}
    for other in others:
        await other.delete_jobs()


async def test_a_recreated_job_never_adopts_the_pods_of_its_predecessor(
    namespace: Namespace,
) -> None:
    async with namespace.operator():
        first = await namespace.create_job(objects.job(workers=0))
        [pod] = (await namespace.until_pods("digits-chief-0")).values()
        assert pod["metadata"]["ownerReferences"][0]["uid"] == first["metadata"]["uid"]
        namespace.kubectl("delete", "tfpj", "digits")
        second = await namespace.create_job(objects.job(workers=0))
        await namespace.until_state("Pending")
        # There is no garbage collector here: the test is it, later.
        await asyncio.sleep(1)
        assert (await namespace.status())["state"] == "Pending"
        namespace.kubectl("delete", "service", "digits")
        for kind in ("configmap", "networkpolicy"):
            namespace.kubectl("delete", kind, "digits-tfparallel")
        namespace.kubectl("delete", "pod", "digits-chief-0", "--grace-period=0", "--force")

        async def replaced() -> bool:
            pods = (await namespace.pods()).values()
            uids = [p["metadata"]["ownerReferences"][0]["uid"] for p in pods]
            return uids == [second["metadata"]["uid"]]

        await waiting.until_async(replaced, "the new job has its own pod")


async def test_deleting_a_job_leaves_nothing(namespace_with_nodes: Namespace) -> None:
    namespace = namespace_with_nodes
    async with namespace.operator():
        await namespace.create_job()
        await namespace.until_pods(*ALL)
        # KWOK's nodes start the pods.
        await namespace.until_state("Running")
    # The operator is not needed for what follows.
    namespace.kubectl("delete", "tfpj", "digits")

    children = [
        resources.PODS,
        resources.SERVICES,
        resources.CONFIG_MAPS,
        resources.NETWORK_POLICIES,
    ]

    async def left() -> list[str]:
        listings = [await namespace.api.list(kind, namespace.name) for kind in children]
        return [item["metadata"]["name"] for listing in listings for item in listing.items]

    what = "everything that belonged to the job is gone"
    await waiting.until_async(left, what, when=["kube-root-ca.crt"].__eq__)
    assert namespace.kubectl("get", "tfpj", "-o", "name") == ""


async def test_peers_have_addresses_before_they_are_ready(namespace_with_nodes: Namespace) -> None:
    """With TFJob (1458), servers that wait for peers were never ready."""
    namespace = namespace_with_nodes
    unready = {"type": "Ready", "status": "False"}
    async with namespace.operator():
        await namespace.create_job()
        await namespace.until_state("Running")
        for name in await namespace.pods():
            path = resources.PODS.path(namespace.name, name, "status")
            await namespace.api.patch(path, {"status": {"conditions": [unready]}})

        async def published() -> bool:
            slices = json.loads(namespace.kubectl("get", "endpointslices", "-ojson"))["items"]
            endpoints = [endpoint for slice_ in slices for endpoint in slice_["endpoints"] or ()]
            names_of_unready = {
                endpoint["hostname"]
                for endpoint in endpoints
                if endpoint["conditions"]["ready"] and not endpoint["conditions"]["serving"]
            }
            return names_of_unready == {*ALL}

        await waiting.until_async(published, "the Service names all pods, which are not ready")


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


async def test_a_pending_deadline_fires_on_a_quiet_job(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(runPolicy={"pendingDeadlineSeconds": 600}))
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        missing = {"reason": "ImagePullBackOff", "message": "no such image"}
        await namespace.kubelet("digits-worker-1", "Pending", waiting=missing)
        status = await namespace.until_reason("Worker", "ImagePullBackOff")
        limit = namespaces.seconds_since(status["attemptTime"]) + 3
        namespace.change({"runPolicy": {"pendingDeadlineSeconds": limit}})
        status = await namespace.until_state("Failed")
        failed = await namespace.condition("Failed")
        assert failed["reason"] == "PendingDeadlineExceeded"
        assert "ImagePullBackOff: no such image" in failed["message"]
        waited = _time(status["completionTime"]) - _time(status["attemptTime"])
        assert datetime.timedelta(seconds=limit) <= waited
        await namespace.until_pods()


async def test_a_deadline_outlives_the_operator(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(runPolicy={"activeDeadlineSeconds": 600}))
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await namespace.run_all()
        started = (await namespace.until_state("Running"))["startTime"]
    namespace.change({"runPolicy": {"activeDeadlineSeconds": 1}})
    await asyncio.sleep(2)
    assert (await namespace.status())["state"] == "Running"
    async with namespace.operator():
        status = await namespace.until_state("Failed")
    assert status["startTime"] == started
    assert (await namespace.condition("Failed"))["reason"] == "DeadlineExceeded"


async def test_without_kueue_a_job_says_so_and_goes_on_without_the_label(
    namespace: Namespace,
) -> None:
    job = objects.job()
    job["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    async with namespace.operator():
        await namespace.create_job(job)
        message = (await namespace.until_refused(names.Reason.KUEUE_NOT_INSTALLED))["message"]
        assert "does not know Workloads of kueue.x-k8s.io" in message
        assert "the label kueue.x-k8s.io/queue-name=research needs" in message
        assert "Install Kueue, or remove the label" in message
        assert await namespace.pods() == {}
        unlabelled = {"metadata": {"labels": {names.LABEL_QUEUE: None}}}
        namespace.kubectl("patch", "tfpj", "digits", "--type=merge", "-p", json.dumps(unlabelled))
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await namespace.until_let_through()


async def test_pods_that_share_layers_come_to_one_node(namespace_with_nodes: Namespace) -> None:
    """Four nodes of four GPUs, and four groups of two pods with two GPUs each."""
    namespace = namespace_with_nodes
    job = objects.job(strategy="ModelSplit", mesh={"data": 4, "tensor": 4}, trainer={"epochs": 1})
    worker = {"replicas": 8, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Running")
        nodes = collections.defaultdict(set)
        for pod in (await namespace.pods()).values():
            nodes[pod["spec"]["nodeName"]].add(pod["metadata"]["labels"][names.LABEL_MESH_GROUP])
        assert sorted(map(sorted, nodes.values())) == [["0"], ["1"], ["2"], ["3"]]
