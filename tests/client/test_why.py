"""`tfparallel why` on real API servers, with the scheduler's own words."""

import asyncio
import datetime
import json
from typing import Any

import pytest

import tfparallel
from testing import invocation, waiting
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel import places
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.diagnosis import findings, job_diagnosis, no_operator
from tfparallel_operator.api_server import credentials, resources


def _why(namespace: Namespace, *arguments: str) -> str:
    where = invocation.where(namespace)
    done = invocation.run("why", "digits", *arguments, *where)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _job(**pod_spec: Any) -> namespaces.Body:
    """Return a job of one worker."""
    job = objects.job(workers=0)
    job["spec"]["tfReplicaSpecs"] = {"Worker": {"template": objects.template(**pod_spec)}}
    return job


async def test_more_gpus_than_a_node_has(namespace_with_nodes: Namespace) -> None:
    namespace, job = namespace_with_nodes, _job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["devices"] = 64
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_reason("Worker", "Unschedulable")
    shown = " ".join(_why(namespace).split())
    assert "digits is pending: digits-worker-0 waits: Unschedulable: 0/4 nodes are" in shown
    assert "4 Insufficient nvidia.com/gpu. What to do: Lower devices of the role" in shown
    assert "digits-worker-0 is Pending for" in shown
    assert "FailedScheduling" in shown
    diagnosis = json.loads(_why(namespace, "-o", "json"))
    assert (diagnosis["kind"], diagnosis["namespace"]) == ("Pending", namespace.name)
    running = await namespace.condition("Running")
    assert running["message"].endswith(diagnosis["remedy"]), "the condition advises the same"
    where = places.Cluster(namespace=namespace.name, kubeconfig=str(namespace.cluster.kubeconfig))
    with tfparallel.TrainerClient(where) as client:
        in_python = await asyncio.to_thread(client.diagnose_job, "digits")
    assert in_python.sentence == diagnosis["sentence"]
    assert in_python.remedy == diagnosis["remedy"]


async def test_a_claim_that_does_not_exist(namespace_with_nodes: Namespace) -> None:
    namespace = namespace_with_nodes
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "photos"}}
    async with namespace.operator():
        await namespace.create_job(_job(volumes=[volume]))
        await namespace.until_reason("Worker", "Unschedulable")
    assert "Create the claim photos in the namespace of the job" in " ".join(
        _why(namespace).split()
    )


@pytest.mark.parametrize(
    ("storage_class", "sentence", "remedy"),
    [
        (
            {"storageClassName": "nowhere"},
            'persistentvolumeclaim "photos": ProvisioningFailed: storageclass.storage.k8s.io'
            ' "nowhere" not found',
            "Delete the claim photos and create it with a storageClassName that"
            " `kubectl get storageclass` lists: nowhere does not exist",
        ),
        (
            {},
            'persistentvolumeclaim "photos" names no StorageClass, and the cluster has no default',
            "Delete the claim photos and create it with a storageClassName",
        ),
    ],
    ids=["missing class", "no default class"],
)
async def test_a_claim_that_never_binds(
    namespace_with_nodes: Namespace, storage_class: dict[str, str], sentence: str, remedy: str
) -> None:
    namespace = namespace_with_nodes
    size = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": size, **storage_class}
    manifest = {"metadata": {"name": "photos"}, "spec": spec}
    await namespace.api.create(resources.CLAIMS, namespace.name, manifest)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "photos"}}
    async with namespace.operator():
        await namespace.create_job(_job(volumes=[volume]))
        await namespace.until_reason("Worker", "Unschedulable")
    # The volume controller writes its Event when it looks at the claim, after the scheduler or not.
    shown = await waiting.until_async(
        lambda: asyncio.to_thread(lambda: " ".join(_why(namespace).split())),
        "the words of the claim",
        when=lambda text: "photos" in text,
    )
    assert sentence in shown
    assert f"What to do: {remedy}" in shown
    assert "claim photos is Pending, ReadWriteOnce, of" in shown


async def test_a_job_that_no_operator_has_seen(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await namespace.create_job()
    monkeypatch.setattr(no_operator, "UNSEEN_AFTER", datetime.timedelta())
    credential = credentials.find(str(namespace.cluster.kubeconfig))
    context = access.Context(name="", namespace=namespace.name, access=credential)
    async with cluster_backend.ClusterBackend(context) as cluster:
        diagnosis = await job_diagnosis.diagnose_job(cluster, "digits")
    assert diagnosis.kind is findings.FindingKind.UNSEEN
    assert diagnosis.sentence.endswith("it is not installed in this cluster")
    assert diagnosis.remedy.startswith("Install the operator: `helm install")
