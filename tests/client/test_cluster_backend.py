"""The client's calls on a real API server; the test is the operator, and patches the status."""

import asyncio
import base64
import importlib.metadata
import io
import pathlib
import queue
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

import tfparallel
from testing import buckets, result_files, waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel.functions import program
from tfparallel_operator.api import names
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.api_server import resources


@pytest.fixture
def client(namespace: Namespace) -> Iterator[tfparallel.TrainerClient]:
    """Tests call it in threads, because the operator and the namespace use the test's loop."""
    where = tfparallel.Cluster(
        kubeconfig=str(namespace.cluster.kubeconfig), namespace=namespace.name
    )
    with tfparallel.TrainerClient(where) as client:
        yield client


def document(name: str = "digits") -> dict[str, Any]:
    worker = {"replicas": 1, "maxReplicas": 3, "template": objects.template()}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"tfReplicaSpecs": {"Worker": worker}},
    }


async def set_state(namespace: Namespace, state: str, step: int | None = None) -> None:
    condition = {
        "type": state,
        "status": "True",
        "reason": "Why",
        "message": "because",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    progress = {} if step is None else {"progress": {"step": step}}
    status = {"state": state, "conditions": [condition], **progress}
    path = resources.JOBS.path(namespace.name, "digits", "status")
    await namespace.api.patch(path, {"status": status})


async def test_jobs_are_created_listed_read_and_deleted(
    client: tfparallel.TrainerClient, namespace: Namespace
) -> None:
    created = await asyncio.to_thread(client.train, document())
    await asyncio.to_thread(client.train, document(), name="other")
    assert [job.name for job in await asyncio.to_thread(client.list_jobs)] == ["digits", "other"]
    assert created.uid in {
        job.uid for job in await asyncio.to_thread(client.list_jobs, everywhere=True)
    }
    assert (await asyncio.to_thread(client.get_job, "digits")).uid == created.uid
    with pytest.raises(tfparallel.JobNotFound, match="did you mean 'digits'"):
        await asyncio.to_thread(client.get_job, "digit")
    with pytest.raises(tfparallel.Failure, match="job 'digits' exists"):
        await asyncio.to_thread(client.train, document())
    with pytest.raises(tfparallel.SpecError, match="the claim with kubectl delete pvc"):
        await asyncio.to_thread(client.delete_job, "digits", delete_results=True)
    await asyncio.to_thread(client.delete_job, "digits")
    assert [job.name for job in await asyncio.to_thread(client.list_jobs)] == ["other"]


async def test_a_manifest_of_another_namespace_is_refused(
    client: tfparallel.TrainerClient,
) -> None:
    elsewhere = document() | {"metadata": {"name": "digits", "namespace": "elsewhere"}}
    with pytest.raises(tfparallel.SpecError, match=r"metadata\.namespace: received 'elsewhere'"):
        await asyncio.to_thread(client.train, elsewhere)


async def test_suspend_resume_and_scale_change_the_spec(
    client: tfparallel.TrainerClient, namespace: Namespace
) -> None:
    await asyncio.to_thread(client.train, document())
    await asyncio.to_thread(client.suspend_job, "digits")
    assert (await namespace.job())["spec"]["runPolicy"]["suspend"] is True
    await asyncio.to_thread(client.resume_job, "digits")
    assert (await namespace.job())["spec"]["runPolicy"]["suspend"] is False
    await asyncio.to_thread(client.scale_job, "digits", 3)
    assert (await namespace.job())["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 3
    with pytest.raises(
        tfparallel.SpecError,
        match=r"^spec\.tfReplicaSpecs: Worker\.replicas is not between its minReplicas and maxRep",
    ):
        await asyncio.to_thread(client.scale_job, "digits", 4)


async def test_waiting_sees_every_state_and_calls_back(
    client: tfparallel.TrainerClient, namespace: Namespace
) -> None:
    await asyncio.to_thread(client.train, document())
    states: queue.Queue[str] = queue.Queue()
    awaited = asyncio.create_task(
        asyncio.to_thread(
            client.wait_for_job_status,
            "digits",
            callbacks=[lambda job: states.put_nowait(job.state)],
        )
    )
    for state in ("Pending", "Running", "Succeeded"):
        if state != "Pending":
            await set_state(namespace, state)
        assert await asyncio.to_thread(states.get) == state
    assert (await awaited).state == "Succeeded"


async def test_events_and_replicas_are_those_of_the_operator(
    client: tfparallel.TrainerClient, namespace: Namespace
) -> None:
    async with namespace.operator():
        await asyncio.to_thread(client.train, document())
        await namespace.until_pods("digits-worker-0")
        [replica] = await asyncio.to_thread(client.list_replicas, "digits")
        assert (replica.name, replica.phase) == ("worker-0", "Pending")
        await namespace.run_all()
        await asyncio.to_thread(client.wait_for_job_status, "digits", "Running")
        await namespace.end("digits-worker-0", 0)
        assert (await asyncio.to_thread(client.wait_for_job_status, "digits")).status.ready == "1/1"
        await waiting.until_async(
            lambda: asyncio.to_thread(client.get_job_events, "digits"),
            "the event of the start",
            when=lambda events: "JobStarted" in {event.reason for event in events},
        )


async def test_workers_that_have_no_bounds_are_not_scaled_and_the_field_is_named(
    client: tfparallel.TrainerClient, namespace: Namespace
) -> None:
    fixed = document()
    del fixed["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"]
    await asyncio.to_thread(client.train, fixed)
    with pytest.raises(
        tfparallel.SpecError, match=r"spec\.tfReplicaSpecs\.Worker\.maxReplicas is not set, and"
    ):
        await asyncio.to_thread(client.scale_job, "digits", 2)
    patch = {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 2}}}}
    with pytest.raises(api_errors.Invalid, match=r"unless tfReplicaSpecs\.Worker has maxReplicas"):
        await namespace.api.patch(resources.JOBS.path(namespace.name, "digits"), patch)


def train(rate: float, results: pathlib.Path) -> None:
    (results / "model.keras").write_text(str(rate))


async def test_a_function_is_sent_with_its_source(
    client: tfparallel.TrainerClient, namespace: Namespace
) -> None:
    created = await asyncio.to_thread(client.train, train, func_args={"rate": 0.5}, workers=2)
    spec = (await namespace.job("train"))["spec"]["tfReplicaSpecs"]["Worker"]
    assert spec["replicas"] == 2
    pod_spec = spec["template"]["spec"]
    version = importlib.metadata.version("tfparallel")
    assert pod_spec["containers"][0]["image"] == f"tfparallel-trainer:{version}"
    listed = await namespace.api.list(resources.CONFIG_MAPS, namespace.name)
    [source] = [body for body in listed.items if body["metadata"]["name"].startswith("train-so")]
    archive = base64.b64decode(source["binaryData"]["chunk"])
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        text = files.extractfile(program.FILE)
        assert text is not None
        assert "train(rate=0.5, results=pathlib.Path(sys.argv[1]))" in text.read().decode()
    assert source["metadata"]["ownerReferences"][0]["uid"] == created.uid


async def test_the_model_of_a_job_comes_from_its_bucket(
    client: tfparallel.TrainerClient,
    namespace: Namespace,
    s3: buckets.Bucket,
    tmp_path: pathlib.Path,
) -> None:
    job = document()
    job["spec"]["trainer"] = {"epochs": 1, "checkpoint": {"uri": s3.uri}}
    del job["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    await asyncio.to_thread(client.train, job)
    with pytest.raises(tfparallel.Failure, match="is Pending, and its model is written at the en"):
        await asyncio.to_thread(client.get_model, "digits", to=tmp_path / "to")
    await set_state(namespace, "Succeeded")
    s3.put(f"runs/{namespace.name}/digits/model.keras", result_files.MODEL)
    model = await asyncio.to_thread(client.get_model, "digits", to=tmp_path / "to")
    assert model == tmp_path / "to/model.keras"
    assert model.read_bytes() == result_files.MODEL
