"""Results in a claim, and the pod that reads them, on a real API server."""

import asyncio
from typing import Any

import pytest

from testing import invocation
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel import errors, models
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.backends.cluster import objects as cluster_objects
from tfparallel.results import claim, stores
from tfparallel_operator.api_server import credentials, resources


def _cluster(namespace: Namespace) -> cluster_backend.ClusterBackend:
    kubeconfig = str(namespace.cluster.kubeconfig)
    context = access.Context("test", namespace.name, credentials.find(kubeconfig))
    return cluster_backend.ClusterBackend(context)


async def _job(namespace: Namespace, *, state: str = "Succeeded", **trainer: Any) -> models.Job:
    job = objects.job(workers=0)
    if trainer:
        job["spec"]["trainer"] = {"epochs": 1, **trainer}
    await namespace.create_job(job)
    path = resources.JOBS.path(namespace.name, "digits", "status")
    return cluster_objects.parse_job(await namespace.api.patch(path, {"status": {"state": state}}))


async def _claim(namespace: Namespace, mode: str = "ReadWriteOnce") -> None:
    manifest = {
        "metadata": {"name": "results"},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await namespace.api.create(resources.CLAIMS, namespace.name, manifest)


_CHOICE = stores.StoreOptions()


async def _opened(namespace: Namespace, job: models.Job) -> None:
    async with _cluster(namespace) as cluster, stores.opened(cluster, job, _CHOICE, lambda _: None):
        pass


@pytest.mark.parametrize(
    ("trainer", "sentence"),
    [
        ({}, "mount no claim that they may write to"),
        ({"module": "model.py"}, "no spec.trainer.checkpoint"),
        ({"checkpoint": {"claim": "results"}}, "claim 'results' of job 'digits' does not exist"),
    ],
    ids=["script", "nothing kept", "claim"],
)
async def test_a_job_that_keeps_nothing(
    namespace: Namespace, trainer: dict[str, Any], sentence: str
) -> None:
    job = await _job(namespace, **trainer)
    with pytest.raises(errors.Failure, match=sentence):
        await _opened(namespace, job)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [("Running", "has not finished: it is Running"), ("Failed", "failed, so it has no model")],
)
async def test_a_job_without_a_model_yet(namespace: Namespace, state: str, sentence: str) -> None:
    await _job(namespace, state=state, checkpoint={"claim": "results"})
    arguments = ("get", "model", "digits", *invocation.where(namespace))
    done = await asyncio.to_thread(invocation.invoke, arguments)
    assert done.exit_code == 1
    assert sentence in done.stderr


async def test_the_pod_fits_restricted_namespaces_and_is_of_the_job(namespace: Namespace) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    await namespace.api.patch(
        f"/api/v1/namespaces/{namespace.name}", {"metadata": {"labels": level}}
    )
    job = await _job(namespace, checkpoint={"claim": "results"})
    pod = claim.build_pod(job, claim.Reader("results", "digits", {}, "trainer:1"), None)
    created = await namespace.api.create(resources.PODS, namespace.name, pod)
    assert created["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert created["spec"]["activeDeadlineSeconds"]
    [container] = created["spec"]["containers"]
    assert {mount["readOnly"] for mount in container["volumeMounts"]} == {True}


async def test_the_pod_goes_to_the_node_that_uses_the_claim(
    namespace_with_nodes: Namespace,
) -> None:
    namespace = namespace_with_nodes
    await _claim(namespace)
    job = await _job(namespace, checkpoint={"claim": "results"})
    user = claim.build_pod(job, claim.Reader("results", "digits", {}, "user:1"), None)
    user["spec"]["nodeName"] = "elsewhere"
    await namespace.api.create(resources.PODS, namespace.name, user)
    reader = claim.Reader("results", "digits", {}, "trainer:1", unschedulable_seconds=0)
    async with _cluster(namespace) as cluster:
        with pytest.raises(errors.Failure, match="no node takes the pod that reads claim"):
            async with claim.opened(cluster, job, reader, lambda _: None):
                pass
    left = (await namespace.api.list(resources.PODS, namespace.name, claim.LABEL_READER)).items
    assert [pod["spec"].get("nodeName") for pod in left] in ([], ["elsewhere"])
    pod = claim.build_pod(job, reader, "elsewhere")
    assert "'elsewhere'" in str(pod["spec"]["affinity"]["nodeAffinity"])


async def test_a_claim_of_one_pod_that_is_in_use(namespace: Namespace) -> None:
    await _claim(namespace, "ReadWriteOncePod")
    job = await _job(namespace, checkpoint={"claim": "results"})
    user = claim.build_pod(job, claim.Reader("results", "digits", {}, "user:1"), None)
    await namespace.api.create(resources.PODS, namespace.name, user)
    with pytest.raises(errors.Failure, match="is ReadWriteOncePod, and pod digits-reader"):
        await _opened(namespace, job)
