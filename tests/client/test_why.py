"""`tfparallel why` on real API servers, with the scheduler's own words."""

import asyncio
import datetime
import json
import subprocess
import sys
from typing import Any

import pytest

import tfparallel
from testing import waiting
from testing.operator import harness, objects
from tfparallel import places
from tfparallel.cluster import access, backend
from tfparallel.diagnosis import findings, gather, unseen
from tfparallel_operator.api_server import credentials, resources


def _why(place: harness.Place, *arguments: str) -> str:
    where = ("--namespace", place.namespace, "--kubeconfig", str(place.cluster.kubeconfig))
    command = (sys.executable, "-m", "tfparallel", "why", "digits", *arguments, *where)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _job(**pod_spec: Any) -> harness.Body:
    """Return a job of one worker."""
    job = objects.job(workers=0)
    job["spec"]["tfReplicaSpecs"] = {"Worker": {"template": objects.template(**pod_spec)}}
    return job


async def test_more_gpus_than_a_node_has(place_with_nodes: harness.Place) -> None:
    place, job = place_with_nodes, _job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["devices"] = 64
    async with place.operator():
        await place.create_job(job)
        await place.until_reason("Worker", "Unschedulable")
    shown = " ".join(_why(place).split())
    assert "digits is pending: digits-worker-0 waits: Unschedulable: 0/4 nodes are" in shown
    assert "4 Insufficient nvidia.com/gpu. What to do: Lower devices of the role" in shown
    assert "digits-worker-0 is Pending for" in shown
    assert "FailedScheduling" in shown
    diagnosis = json.loads(_why(place, "-o", "json"))
    assert (diagnosis["kind"], diagnosis["namespace"]) == ("Pending", place.namespace)
    running = await place.condition("Running")
    assert running["message"].endswith(diagnosis["remedy"]), "the condition advises the same"
    where = places.Cluster(namespace=place.namespace, kubeconfig=str(place.cluster.kubeconfig))
    async with tfparallel.AsyncTrainerClient(where) as client:
        in_python = await client.diagnose_job("digits")
    assert in_python.sentence == diagnosis["sentence"]
    assert in_python.remedy == diagnosis["remedy"]


async def test_a_claim_that_does_not_exist(place_with_nodes: harness.Place) -> None:
    place = place_with_nodes
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "photos"}}
    async with place.operator():
        await place.create_job(_job(volumes=[volume]))
        await place.until_reason("Worker", "Unschedulable")
    assert "Create the claim photos in the namespace of the job" in " ".join(_why(place).split())


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
    place_with_nodes: harness.Place, storage_class: dict[str, str], sentence: str, remedy: str
) -> None:
    place = place_with_nodes
    size = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": size, **storage_class}
    manifest = {"metadata": {"name": "photos"}, "spec": spec}
    await place.api.create(resources.CLAIMS, place.namespace, manifest)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "photos"}}
    async with place.operator():
        await place.create_job(_job(volumes=[volume]))
        await place.until_reason("Worker", "Unschedulable")
    # The volume controller writes its Event when it looks at the claim, after the scheduler or not.
    shown = await waiting.until_async(
        lambda: asyncio.to_thread(lambda: " ".join(_why(place).split())),
        "the words of the claim",
        when=lambda text: "photos" in text,
    )
    assert sentence in shown
    assert f"What to do: {remedy}" in shown
    assert "claim photos is Pending, ReadWriteOnce, of" in shown


async def test_a_job_that_no_operator_has_seen(
    place: harness.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.create_job()
    monkeypatch.setattr(unseen, "UNSEEN_AFTER", datetime.timedelta())
    credential = credentials.find(str(place.cluster.kubeconfig))
    context = access.Context(name="", namespace=place.namespace, access=credential)
    async with backend.ClusterBackend(context) as cluster:
        diagnosis = await gather.diagnose_job(cluster, "digits")
    assert diagnosis.kind is findings.Kind.UNSEEN
    assert diagnosis.sentence.endswith("it is not installed in this cluster")
    assert diagnosis.remedy.startswith("Install the operator: `helm install")
