"""Converted TFJobs on a real API server: their pods, and what TF_CONFIG says in each."""

import json
import pathlib
from typing import Any

import pytest

from testing import invocation, pages, paths
from testing.operator import namespaces
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names, yaml_documents
from tfparallel_operator.api_server import resources

SHAPES = pathlib.Path(__file__).parent / "tfjobs"

CHIEF, MASTER, WORKER, PS, EVALUATOR = "chief", "master", "worker", "ps", "evaluator"

CLUSTERS: dict[str, tuple[str, dict[str, int]]] = {
    "dist-mnist": ("dist-mnist", {PS: 2, WORKER: 4}),
    "mnist-summaries": ("mnist", {WORKER: 1}),
    "estimator": ("estimator", {MASTER: 1, WORKER: 2, PS: 1, EVALUATOR: 1}),
    "keras-multi-worker": ("multi-worker", {WORKER: 2}),
    "dynamic": ("dynamic", {PS: 2, WORKER: 2}),
    "old": ("old", {CHIEF: 1, WORKER: 2}),
}
"""The job of each shape and its replicas."""

PORTS = {"keras-multi-worker": 3333}


def addresses(shape: str, role: str) -> list[str]:
    name, replicas = CLUSTERS[shape]
    port = PORTS.get(shape, names.DEFAULT_PORT)
    return [f"{name}-{role}-{index}.{name}:{port}" for index in range(replicas[role])]


def expected(shape: str, role: str, index: int) -> dict[str, Any]:
    """What TF_CONFIG has to say by TensorFlow's rules, written without the operator's code."""
    roles = CLUSTERS[shape][1]
    task = CHIEF if role == MASTER else role
    cluster: dict[str, Any] = {
        CHIEF if role_name == MASTER else role_name: addresses(shape, role_name)
        for role_name in roles
        if role_name != EVALUATOR or role == EVALUATOR
    }
    if shape == "dynamic" and role == WORKER:
        cluster[WORKER] = {str(index): addresses(shape, WORKER)[index]}
    if shape == "dynamic" and role == PS:
        del cluster[WORKER]
    return {"cluster": cluster, "task": {"type": task, "index": index}}


def converted(text: str) -> list[Any]:
    result = invocation.invoke(["convert", "-"], text)
    assert result.exit_code == 0, result.stderr
    return yaml_documents.parse(result.stdout, "converted")


def tf_config(pod: namespaces.Body) -> Any:
    [container] = [c for c in pod["spec"]["containers"] if c["name"] == names.CONTAINER]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    return json.loads(variables["TF_CONFIG"])


@pytest.mark.parametrize("shape", CLUSTERS)
async def test_a_converted_tfjob_runs_with_a_right_tf_config(
    namespace: Namespace, shape: str
) -> None:
    name, replicas = CLUSTERS[shape]
    for document in converted((SHAPES / f"{shape}.yaml").read_text()):
        # As convert says: here is no gang scheduler.
        document["spec"].get("runPolicy", {}).pop("schedulingPolicy", None)
        namespace.kubectl("apply", "-f", "-", body=document)
    expected_pods = {
        f"{name}-{role}-{index}": expected(shape, role, index)
        for role, count in replicas.items()
        for index in range(count)
    }
    async with namespace.operator():
        pods = await namespace.until_pods(*expected_pods)
        await namespace.until_state("Pending", name)
    assert {pod: tf_config(body) for pod, body in pods.items()} == expected_pods


async def test_worker_0_decides_about_servers_without_a_chief(namespace: Namespace) -> None:
    [job] = converted((SHAPES / "dist-mnist.yaml").read_text())
    await namespace.create_job(job)
    async with namespace.operator():
        pods = await namespace.until_pods(
            *(f"dist-mnist-ps-{index}" for index in range(2)),
            *(f"dist-mnist-worker-{index}" for index in range(4)),
        )
        await namespace.run_all()
        await namespace.end("dist-mnist-worker-1", 0)
        await namespace.until_state("Running", "dist-mnist")
        await namespace.end("dist-mnist-worker-0", 0)
        await namespace.until_state("Succeeded", "dist-mnist")
    # cleanPodPolicy None, TFJob's default, was written: nothing is deleted.
    assert set(await namespace.pods()) == set(pods)


async def test_a_failed_replica_fails_the_job_as_with_tfjobs_default(namespace: Namespace) -> None:
    [job] = converted((SHAPES / "old.yaml").read_text())
    await namespace.create_job(job)
    async with namespace.operator():
        await namespace.until_pods("old-chief-0", "old-worker-0", "old-worker-1")
        await namespace.run_all()
        await namespace.end("old-worker-1", 1)
        await namespace.until_state("Failed", "old")
        await namespace.until_pods()  # cleanPodPolicy All


async def test_two_changed_lines_give_the_same_cluster(namespace: Namespace) -> None:
    text = (SHAPES / "estimator.yaml").read_text()
    text = text.replace("kubeflow.org/v1", names.API_VERSION).replace("TFJob", names.KIND)
    [document] = yaml_documents.parse(text, "estimator")
    namespace.kubectl("apply", "-f", "-", body=dict(document))
    name, replicas = CLUSTERS["estimator"]
    pods = [f"{name}-{role}-{index}" for role, n in replicas.items() for index in range(n)]
    async with namespace.operator():
        running = await namespace.until_pods(*pods)
    assert tf_config(running["estimator-worker-1"]) == expected("estimator", WORKER, 1)


async def test_a_converted_trainjob_runs_with_a_right_tf_config(namespace: Namespace) -> None:
    [job] = converted(pages.blocks(paths.PAGES / "how-to/trainjob.md", "yaml")[0])
    await namespace.create_job(job)
    workers = [f"mnist-worker-{index}.mnist:{names.DEFAULT_PORT}" for index in range(2)]
    async with namespace.operator():
        pods = await namespace.until_pods("mnist-worker-0", "mnist-worker-1")
        assert tf_config(pods["mnist-worker-1"]) == {
            "cluster": {WORKER: workers},
            "task": {"type": WORKER, "index": 1},
        }
        await namespace.run_all()
        await namespace.end("mnist-worker-0", 0)
        await namespace.until_state("Running", "mnist")
        await namespace.end("mnist-worker-1", 0)  # as AllWorkers says
        await namespace.until_state("Succeeded", "mnist")


async def test_an_exported_suspended_job_waits(namespace: Namespace) -> None:
    [listing] = converted((SHAPES / "exported.yaml").read_text())
    namespace.kubectl("apply", "-f", "-", body=listing)
    async with namespace.operator():
        await namespace.until_state("Suspended", "exported")
    assert await namespace.pods() == {}
    assert (await namespace.api.list(resources.JOBS, namespace.name)).items
