"""From a job to the place that keeps its results."""

import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from tfparallel import backend as backends
from tfparallel import errors, models
from tfparallel.backends.cluster import cluster_backend, refusals
from tfparallel.backends.local import folders
from tfparallel.backends.local import local_backend as machine_backend
from tfparallel.results import bucket, claim, files, folder, script
from tfparallel_operator.api import load, names, trainer_spec
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.pods import claims
from tfparallel_trainer.contract import job_file


@dataclasses.dataclass(frozen=True, slots=True)
class StoreOptions:
    """What the user says of the place."""

    image: str | None = None
    """Image of the pod that reads a claim; None: that of the job's pods."""
    path: str | None = None
    """Of the results, as the container of a script sees it; None: all of its claim."""


@contextlib.asynccontextmanager
async def opened_anywhere(
    jobs: backends.Backend, job: models.Job, choice: StoreOptions, say: Callable[[str], None]
) -> AsyncIterator[files.Store]:
    """Open the place that keeps the results of a job of a cluster or of this machine.

    `jobs` is where the job is. The other arguments and the errors are those of `opened`, which is
    for a cluster alone.
    """
    if isinstance(jobs, machine_backend.LocalBackend):
        yield _find_folder(jobs.find_folder(job.name), job, choice)
    elif isinstance(jobs, cluster_backend.ClusterBackend):
        async with opened(jobs, job, choice, say) as store:
            yield store
    else:
        raise errors.Failure(f"{type(jobs).__name__} does not know where jobs keep their results")


def _find_folder(root: pathlib.Path, job: models.Job, choice: StoreOptions) -> files.Store:
    """Return where a local run keeps its results: of a script, what stands for its claim."""
    parsed = load.read_accepted_job(job.manifest)
    if parsed.spec.trainer is not None:
        return folder.find(root)
    results = script.find(parsed, choice.path)
    return folder.FolderStore(folders.Folders(root).claim(results.claim) / results.path)


@contextlib.asynccontextmanager
async def opened(
    cluster: cluster_backend.ClusterBackend,
    job: models.Job,
    choice: StoreOptions,
    say: Callable[[str], None],
) -> AsyncIterator[files.Store]:
    """Open the place that keeps the results of a job.

    Args:
        choice: what the user says of the place.

    Raises:
        SpecError: a path is chosen for a job that has one.
        Failure: the job keeps nothing, or the place cannot be read.
    """
    parsed = load.read_accepted_job(job.manifest)
    if parsed.spec.trainer is None:
        results = script.find(parsed, choice.path)
    else:
        checkpoint = _checkpoint(job, parsed.spec.trainer, choice)
        if checkpoint.uri is not None:
            yield await bucket.find(checkpoint.uri, job.namespace, job.name)
            return
        name = claims.name(parsed, str(checkpoint.claim))
        results = script.ClaimFolder(name, pathlib.PurePosixPath(job.name))
    template = await _pod_spec(cluster, job)
    image = choice.image or _image(template) or await backends.find_trainer_image(cluster)
    reader = claim.Reader(results.claim, str(results.path), template, image)
    async with claim.opened(cluster, job, reader, say) as store:
        yield store


def _checkpoint(
    job: models.Job, trainer: trainer_spec.Trainer, choice: StoreOptions
) -> job_file.Checkpoint:
    if choice.path is not None:
        raise load.SpecError(
            f"--path {choice.path}: job {job.name!r} keeps its results where"
            " spec.trainer.checkpoint says. Leave out --path, which is for scripts"
        )
    if trainer.checkpoint is None:
        raise errors.Failure(
            f"job {job.name!r} kept nothing: it has no spec.trainer.checkpoint. Set"
            " checkpoint.claim or checkpoint.uri, and train again"
        )
    return trainer.checkpoint


async def _pod_spec(cluster: cluster_backend.ClusterBackend, job: models.Job) -> Mapping[str, Any]:
    """Return the spec of a pod of the job, or that of its first template."""
    with refusals.explained(cluster.context):
        selector = f"{names.LABEL_JOB}={job.name},{names.LABEL_ROLE}"
        pods = await cluster.api.list(resources.PODS, job.namespace, selector)
    specs = [pod["spec"] for pod in pods.items]
    specs += [role.get("template", {}).get("spec", {}) for role in job.roles.values()]
    spec: Mapping[str, Any] = next(filter(None, specs), {})
    return spec


def _image(pod_spec: Mapping[str, Any]) -> str | None:
    """Return the image of the container that trains."""
    for container in pod_spec.get("containers", []):
        if container["name"] == names.CONTAINER:
            image: str | None = container.get("image")
            return image
    return None
