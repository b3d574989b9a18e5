"""The custom resource as the API server sees it: what it takes in, and what may change later."""

import json
from typing import Any

import pytest
import yaml

from testing.cluster import console, handle
from testing.operator import edits, objects, spec_changes
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import load, names, schema
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.engine.write import merge
from tfparallel_trainer.contract import job_file


async def test_an_unknown_field_is_refused_where_strict_validation_is_asked_for(
    namespace: Namespace,
) -> None:
    job = objects.job(runPolcy={"backoffLimit": 1})
    with pytest.raises(errors.Invalid, match=r'unknown field "spec\.runPolcy"'):
        await namespace.create_job(job)
    with pytest.raises(console.ClusterError, match=r'unknown field "spec\.runPolcy"'):
        namespace.kubectl("apply", "-f", "-", body=job)


@pytest.mark.parametrize("suspended", [False, True])
async def test_an_edit_of_each_field_is_admitted_as_the_table_of_edits_says(
    namespace: Namespace, suspended: bool
) -> None:
    """docs/explanation/life.md: what is refused there is refused here, and nothing else is."""
    stored_jobs: dict[str, dict[str, Any]] = {}
    sentences: dict[str, bool] = {}
    for path, node in edits.fields().items():
        for example in edits.examples(path, node):
            if example.job not in stored_jobs:
                job = edits.document(example.job)
                job["metadata"] = {"name": example.job}
                job["spec"].setdefault("runPolicy", {})["suspend"] = suspended
                stored_jobs[example.job] = await namespace.create_job(job)
            before = stored_jobs[example.job]
            after = edits.edited(before, path, example.value)
            change = merge.difference(before["spec"], after["spec"])
            address = resources.JOBS.path(namespace.name, example.job)
            refusal = ""
            try:
                await namespace.api.patch(address, {"spec": change})
            except errors.Invalid as error:
                refusal = str(error)
            else:
                uid = stored_jobs.pop(example.job)["metadata"]["uid"]
                await namespace.api.delete(resources.JOBS, namespace.name, example.job, uid)
            expected = edits.refusal(before, after)
            assert bool(refusal) == bool(expected), (path, refusal)
            sentences.setdefault(expected, False)
            sentences[expected] |= expected in refusal
    assert all(sentences.values()), sentences  # once each, where the schema takes the value


@pytest.mark.parametrize(
    "mesh",
    [
        {"data": 2, "tensor": 2, "shardOptimizer": True},
        {"stage": -1, "cuts": ["a", "b", "c"]},
        {"auto": True, "shardOptimizer": True, "recompute": True},
    ],
)
async def test_a_mesh_that_fits_is_taken_and_completed(
    mesh: dict[str, Any], namespace: Namespace
) -> None:
    job = objects.job()
    spec_changes.split(**mesh)(job)
    stored_job = await namespace.create_job(job)
    assert stored_job["spec"]["mesh"] == {
        "data": 1,
        "stage": 1,
        "spatial": 1,
        "tensor": 1,
        "microbatches": 1,
        "schedule": "1F1B",
        "auto": False,
        "shardOptimizer": False,
        "recompute": False,
        **mesh,
    }
    assert load.parse_job(stored_job).spec.mesh == job_file.Mesh(**mesh)


async def test_every_field_of_a_trainer_is_accepted(namespace: Namespace) -> None:
    key = {"name": "store", "key": "token"}
    trainer = {
        "epochs": 1,
        "source": {"archive": spec_changes.ARCHIVE, "requirements": "requirements.txt"},
        "env": [
            {"name": "PIP_INDEX_URL", "value": "https://index.example/simple"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": key}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "envFrom": [{"secretRef": {"name": "all"}, "prefix": "S_"}],
        "volumes": [{"name": "images", "mountPath": "/data", "claim": "images"}],
        "imagePullSecrets": ["registry"],
    }
    job = objects.job()
    spec_changes.claims("images")(job)
    job["spec"] |= {
        "trainer": trainer,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
    }
    stored_job = await namespace.create_job(job)
    assert stored_job["spec"]["trainer"]["volumes"][0]["readOnly"] is False
    assert load.parse_job(stored_job).spec.trainer is not None
    await namespace.api.patch(
        resources.JOBS.path(namespace.name, "digits"), {"spec": {"runPolicy": {"suspend": True}}}
    )


async def test_defaults_are_filled_in(namespace: Namespace) -> None:
    job = await namespace.create_job(objects.job(runPolicy={}))
    assert job["spec"]["runPolicy"] == {
        "backoffLimit": 3,
        "cleanPodPolicy": "Running",
        "evaluatorGraceSeconds": 300,
        "scaleCooldownSeconds": 60,
        "suspend": False,
    }
    assert job["spec"]["tfReplicaSpecs"]["Chief"]["replicas"] == 1


async def test_a_job_of_the_largest_size_passes(namespace: Namespace) -> None:
    job = await namespace.create_job(objects.job(workers=5000))
    assert job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 5000
    load.parse_job(job)


def test_the_resource_is_applied_by_plain_kubectl_and_can_be_applied_again(
    cluster: handle.Cluster,
) -> None:
    text = yaml.safe_dump(schema.custom_resource_definition())
    answer = cluster.run_kubectl("apply", "-f", "-", input=text)
    assert f"{names.PLURAL}.{names.GROUP} unchanged" in answer
    definition = json.loads(
        cluster.run_kubectl("get", "crd", f"{names.PLURAL}.{names.GROUP}", "-o", "json")
    )
    conditions = {
        condition["type"]: condition["status"] for condition in definition["status"]["conditions"]
    }
    assert conditions["Established"] == "True"
    assert "NonStructuralSchema" not in conditions
    assert "tfpj" in cluster.run_kubectl("api-resources", f"--api-group={names.GROUP}")
