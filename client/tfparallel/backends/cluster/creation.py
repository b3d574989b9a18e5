"""Creates a job and the objects that it needs, and plans before whether its model fits."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from tfparallel import errors, models, submission
from tfparallel.backends.cluster import access, objects, refusals
from tfparallel.planning import fit
from tfparallel_operator.api import accelerators, load
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.api_server import errors as api_errors


async def submit(
    api: client.Client, context: access.Context, bundle: submission.Submission
) -> models.Job:
    """Create a job and the objects that it needs.

    Sources come before the job, so that no pod waits for them. After the job's creation, they get
    the job as their owner. If this process dies in between, the next submission of the same files
    uses them.

    Raises:
        Failure: the API server refuses, or a job of the name exists.
        SpecError: it refuses an object as wrong.
    """
    namespace = context.namespace
    _check_namespace(namespace, bundle.job)
    with refusals.explained(context):
        await _refuse_second(api, namespace, bundle.name)
        for companion in bundle.companions:
            await _ensure(api, namespace, submission.COMPANIONS[companion["kind"]], companion)
        for config_map in bundle.sources:
            await _ensure_without_owner(api, namespace, config_map)
        body = await api.create(resources.JOBS, namespace, bundle.job)
        job = objects.parse_job(body)
        for config_map in bundle.sources:
            path = resources.CONFIG_MAPS.path(namespace, config_map["metadata"]["name"])
            await api.patch(path, {"metadata": {"ownerReferences": [objects.owner_reference(job)]}})
    return job


async def find_misfit(api: client.Client, bundle: submission.Submission) -> str | None:
    """Plan a divided model on the GPUs that it would get; see `fit.find_warning`.

    Without the right to list nodes, only the templates say which GPUs these are.
    """
    if "mesh" not in bundle.job["spec"]:
        return None
    nodes: list[Mapping[str, str]] = []
    with contextlib.suppress(api_errors.ApiError):
        nodes += [
            node["metadata"].get("labels", {})
            for node in (await api.list(resources.NODES, None)).items
            if accelerators.count_gpus(node.get("status", {}).get("allocatable", {}))
        ]
    documents = (*bundle.companions, *bundle.sources)
    return await asyncio.to_thread(fit.find_warning, bundle.job, documents, nodes)


def _check_namespace(namespace: str, job: Mapping[str, Any]) -> None:
    named = job["metadata"].get("namespace", namespace)
    if named != namespace:
        raise load.SpecError(
            f"metadata.namespace: received {named!r}, and the client's is {namespace!r}: change one"
            " of them"
        )


async def _refuse_second(api: client.Client, namespace: str, name: str) -> None:
    with contextlib.suppress(api_errors.NotFound):
        await api.get(resources.JOBS.path(namespace, name))
        raise errors.Failure(
            f"job {name!r} exists in namespace {namespace!r}: delete it (tfparallel delete"
            f" {name}), or choose another name with --name"
        )


async def _ensure(
    api: client.Client, namespace: str, resource: resources.Resource, manifest: Mapping[str, Any]
) -> None:
    """Create an object, unless one of its name exists."""
    with contextlib.suppress(api_errors.AlreadyExists):
        await api.create(resource, namespace, manifest)


async def _ensure_without_owner(
    api: client.Client, namespace: str, config_map: Mapping[str, Any]
) -> None:
    """Create a ConfigMap, or take over that of a job that may be about to be deleted.

    The garbage collector deletes an object only in the version in which it saw the object's owner.
    """
    name = config_map["metadata"]["name"]
    path = resources.CONFIG_MAPS.path(namespace, name)
    while True:
        try:
            await api.create(resources.CONFIG_MAPS, namespace, config_map)
        except api_errors.AlreadyExists:
            with contextlib.suppress(api_errors.NotFound):  # deleted in between
                await api.patch(path, {"metadata": {"ownerReferences": None}})
                return
        else:
            return
