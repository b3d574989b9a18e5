"""Creates a job with all that it needs."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from tfparallel import errors, models, submission
from tfparallel.cluster import access, answers, objects
from tfparallel_operator.api import load, names
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.api_server import errors as api_errors


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """Where a job is created."""

    api: client.Client
    context: access.Context

    @property
    def namespace(self) -> str:
        """The namespace of everything that is created."""
        return self.context.namespace


async def submit(cluster: Cluster, bundle: submission.Submission) -> models.Job:
    """Create a job with all that it needs.

    Sources come before the job, so that no pod waits for them, and get the job as their owner
    after it. If this process dies in between, the next submission of the same files goes on with
    what is there.

    Raises:
        Failure: the API server refuses, or a job of the name exists.
        SpecError: it refuses an object as wrong.
    """
    _check_namespace(cluster, bundle.job)
    with answers.explained(cluster.context):
        await _refuse_second(cluster, bundle.name)
        for companion in bundle.companions:
            await _ensure(cluster, submission.COMPANIONS[companion["kind"]], companion)
        for config_map in bundle.sources:
            await _ensure_without_owner(cluster, config_map)
        body = await cluster.api.create(resources.JOBS, cluster.namespace, bundle.job)
        job = objects.parse_job(body)
        for config_map in bundle.sources:
            path = resources.CONFIG_MAPS.path(cluster.namespace, config_map["metadata"]["name"])
            await cluster.api.patch(path, {"metadata": {"ownerReferences": [_owner(job)]}})
    return job


def _check_namespace(cluster: Cluster, job: Mapping[str, Any]) -> None:
    namespace = job["metadata"].get("namespace", cluster.namespace)
    if namespace != cluster.namespace:
        raise load.SpecError(
            f"metadata.namespace: received {namespace!r}, and the client's is"
            f" {cluster.namespace!r}: change one of them"
        )


async def _refuse_second(cluster: Cluster, name: str) -> None:
    with contextlib.suppress(api_errors.NotFound):
        await cluster.api.get(resources.JOBS.path(cluster.namespace, name))
        raise errors.Failure(
            f"job {name!r} exists in namespace {cluster.namespace!r}: delete it (tfparallel delete"
            f" {name}), or choose another name with --name"
        )


async def _ensure(
    cluster: Cluster, resource: resources.Resource, manifest: Mapping[str, Any]
) -> None:
    """Create an object unless one of its name is there."""
    with contextlib.suppress(api_errors.AlreadyExists):
        await cluster.api.create(resource, cluster.namespace, manifest)


async def _ensure_without_owner(cluster: Cluster, config_map: Mapping[str, Any]) -> None:
    """Create a ConfigMap, or take over that of a job which may be being deleted.

    The garbage collector deletes an object only in the version in which it saw its owner.
    """
    name = config_map["metadata"]["name"]
    path = resources.CONFIG_MAPS.path(cluster.namespace, name)
    while True:
        try:
            await cluster.api.create(resources.CONFIG_MAPS, cluster.namespace, config_map)
        except api_errors.AlreadyExists:
            with contextlib.suppress(api_errors.NotFound):  # deleted in between
                await cluster.api.patch(path, {"metadata": {"ownerReferences": None}})
                return
        else:
            return


def _owner(job: models.Job) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
