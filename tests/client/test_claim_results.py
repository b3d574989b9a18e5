"""Results in a claim, and the pod that reads them, on a real API server."""

import asyncio
from typing import Any

import click.testing
import pytest

from testing.operator import harness, objects
from tfparallel import errors, models
from tfparallel.cli import app
from tfparallel.cluster import access, backend
from tfparallel.cluster import objects as cluster_objects
from tfparallel.results import claim, places
from tfparallel_operator.api_server import credentials, resources


def _cluster(place: harness.Place) -> backend.ClusterBackend:
    kubeconfig = str(place.cluster.kubeconfig)
    context = access.Context("test", place.namespace, credentials.find(kubeconfig))
    return backend.ClusterBackend(context)


async def _job(place: harness.Place, *, state: str = "Succeeded", **trainer: Any) -> models.Job:
    job = objects.job(workers=0)
    if trainer:
        job["spec"]["trainer"] = {"epochs": 1, **trainer}
    await place.create_job(job)
    path = resources.JOBS.path(place.namespace, "digits", "status")
    return cluster_objects.parse_job(await place.api.patch(path, {"status": {"state": state}}))


async def _claim(place: harness.Place, mode: str = "ReadWriteOnce") -> None:
    manifest = {
        "metadata": {"name": "results"},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await place.api.create(resources.CLAIMS, place.namespace, manifest)


_CHOICE = places.Choice()


async def _opened(place: harness.Place, job: models.Job) -> None:
    async with _cluster(place) as cluster, places.opened(cluster, job, _CHOICE, lambda _: None):
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
    place: harness.Place, trainer: dict[str, Any], sentence: str
) -> None:
    job = await _job(place, **trainer)
    with pytest.raises(errors.Failure, match=sentence):
        await _opened(place, job)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [("Running", "has not finished: it is Running"), ("Failed", "failed, so it has no model")],
)
async def test_a_job_without_a_model_yet(place: harness.Place, state: str, sentence: str) -> None:
    await _job(place, state=state, checkpoint={"claim": "results"})
    where = ("-n", place.namespace, "--kubeconfig", str(place.cluster.kubeconfig))
    runner, command = click.testing.CliRunner(), ("get", "model", "digits", *where)
    done = await asyncio.to_thread(runner.invoke, app.tfparallel, command)
    assert done.exit_code == 1
    assert sentence in done.stderr


async def test_the_pod_fits_restricted_namespaces_and_is_of_the_job(place: harness.Place) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    await place.api.patch(f"/api/v1/namespaces/{place.namespace}", {"metadata": {"labels": level}})
    job = await _job(place, checkpoint={"claim": "results"})
    pod = claim.build_pod(job, claim.Reader("results", "digits", {}, "trainer:1"), None)
    created = await place.api.create(resources.PODS, place.namespace, pod)
    assert created["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert created["spec"]["activeDeadlineSeconds"]
    [container] = created["spec"]["containers"]
    assert {mount["readOnly"] for mount in container["volumeMounts"]} == {True}


async def test_the_pod_goes_to_the_node_that_uses_the_claim(
    place_with_nodes: harness.Place,
) -> None:
    place = place_with_nodes
    await _claim(place)
    job = await _job(place, checkpoint={"claim": "results"})
    user = claim.build_pod(job, claim.Reader("results", "digits", {}, "user:1"), None)
    user["spec"]["nodeName"] = "elsewhere"
    await place.api.create(resources.PODS, place.namespace, user)
    reader = claim.Reader("results", "digits", {}, "trainer:1", unschedulable_seconds=0)
    async with _cluster(place) as cluster:
        with pytest.raises(errors.Failure, match="no node takes the pod that reads claim"):
            async with claim.opened(cluster, job, reader, lambda _: None):
                pass
    left = (await place.api.list(resources.PODS, place.namespace, claim.LABEL_READER)).items
    assert [pod["spec"].get("nodeName") for pod in left] in ([], ["elsewhere"])
    pod = claim.build_pod(job, reader, "elsewhere")
    assert "'elsewhere'" in str(pod["spec"]["affinity"]["nodeAffinity"])


async def test_a_claim_of_one_pod_that_is_in_use(place: harness.Place) -> None:
    await _claim(place, "ReadWriteOncePod")
    job = await _job(place, checkpoint={"claim": "results"})
    user = claim.build_pod(job, claim.Reader("results", "digits", {}, "user:1"), None)
    await place.api.create(resources.PODS, place.namespace, user)
    with pytest.raises(errors.Failure, match="is ReadWriteOncePod, and pod digits-reader"):
        await _opened(place, job)
