"""The scale subresource on a real API server, by hand and by an autoscaler."""

import json

import pytest

from testing.cluster import console
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import job_status
from tfparallel_operator.api_server import resources


def _elastic(workers: int = 2) -> namespaces.Body:
    job = objects.job(workers=workers, runPolicy={"scaleCooldownSeconds": 0})
    job["spec"]["tfReplicaSpecs"]["Worker"].update(minReplicas=1, maxReplicas=4)
    return job


async def test_kubectl_scales_the_workers(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(_elastic())
        await namespace.run_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=3")
        pods = [f"digits-worker-{index}" for index in range(3)]
        await namespace.until_pods("digits-chief-0", *pods, attempt=2)
        shown = json.loads(
            namespace.kubectl("get", "tfpj", "digits", "--subresource=scale", "-ojson")
        )
        assert shown["spec"]["replicas"] == shown["status"]["replicas"] == 3
        assert shown["status"]["selector"] == (
            "tfparallel.dev/job-name=digits,tfparallel.dev/replica-role=worker"
        )
        assert (await namespace.status())["restarts"] == {"failure": 0, "disruption": 0}


async def test_kubectl_shows_all_restarts_and_with_wide_of_which_kinds(
    namespace: Namespace,
) -> None:
    await namespace.create_job()
    counts = job_status.Restarts(failure=1, disruption=2)
    progress = job_status.ProgressStatus(step=120, total_steps=500, percent=24)
    status = job_status.JobStatus(
        restarts=counts, last_cause="Disruption", attempt=4, progress=progress
    )
    path = resources.JOBS.path(namespace.name, "digits", "status")
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    await namespace.api.patch(path, {"status": written})
    heads, row = namespace.kubectl("get", "tfpj").splitlines()
    assert heads.split()[-2:] == ["RESTARTS", "AGE"]
    assert row.split()[-2] == "3"
    assert row[heads.index("PROGRESS(%)") :].split()[0] == "24"
    heads, row = namespace.kubectl("get", "tfpj", "-o", "wide").splitlines()
    wide = ["ATTEMPT", "FAILURES", "DISRUPTIONS", "LAST", "CAUSE", "EXAMPLES/S", "INPUT", "WAIT"]
    assert heads.split()[-len(wide) :] == wide
    assert row.split()[-4:] == ["4", "1", "2", "Disruption"]


async def test_a_number_outside_of_the_bounds_is_refused(namespace: Namespace) -> None:
    await namespace.create_job(_elastic())
    with pytest.raises(console.ClusterError, match="not between its minReplicas and maxReplicas"):
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=5")


async def test_a_job_without_bounds_is_not_scaled(namespace: Namespace) -> None:
    await namespace.create_job(objects.job())
    with pytest.raises(console.ClusterError, match="has maxReplicas or minReplicas"):
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=3")


async def test_the_manager_cannot_change(namespace: Namespace) -> None:
    await namespace.create_job(objects.job(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}))
    with pytest.raises(console.ClusterError, match="managedBy cannot change"):
        namespace.change({"managedBy": "tfparallel.dev/operator"})
