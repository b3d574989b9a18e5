"""From a job's file to a job in a cluster."""

import contextlib
import copy
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel import errors, models, sources
from tfparallel.cluster import answers, backend, objects
from tfparallel_operator.api import load, names
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.api_server import resources
from tfparallel_operator.local import overrides, source

_COMPANIONS = {
    "ConfigMap": resources.CONFIG_MAPS,
    "Secret": resources.SECRETS,
    "PersistentVolumeClaim": resources.CLAIMS,
}
"""What a job's file may bring besides the job."""


@dataclasses.dataclass(frozen=True, slots=True)
class Submission:
    """What is created for a job: first the objects that it needs, then the job."""

    job: Mapping[str, Any]
    companions: Sequence[Mapping[str, Any]]
    """Objects that outlive the job: they stood in its file."""
    sources: Sequence[Mapping[str, Any]]
    """ConfigMaps with the user's files: they are deleted with the job."""

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.job["metadata"]["name"])


def read(
    file: pathlib.Path,
    assignments: Sequence[str] = (),
    *,
    name: str | None = None,
    claim_size: str | None = None,
) -> Submission:
    """Read a job's file, and pack what lies next to it.

    Args:
        file: YAML with one job, and the ConfigMaps, Secrets and claims that it needs.
        assignments: FIELD=VALUE, as `--set` takes them.
        name: of the job, in place of the file's.
        claim_size: such as 10Gi: the claim of the checkpoints is created with it.

    Raises:
        SpecError: with a sentence for each problem.
    """
    documents = load.parse_documents(source.read_text(file), str(file))
    named = [] if name is None else [f"metadata.name={name}"]
    job = overrides.apply(load.find_job(documents, str(file)), [*assignments, *named])
    load.parse_manifest(job)
    others = [document for document in documents if document.get("kind") != names.KIND]
    if foreign := [str(d.get("kind")) for d in others if d.get("kind") not in _COMPANIONS]:
        raise load.SpecError(
            f"{file}: holds {', '.join(foreign)}, and a submission brings only"
            f" {', '.join(_COMPANIONS)}: apply the rest with kubectl"
        )
    if claim_size is not None:
        others.append(_claim(job, claim_size))
    return build(job, others, file.resolve().parent)


def build(
    job: Mapping[str, Any], companions: Sequence[Mapping[str, Any]], folder: pathlib.Path
) -> Submission:
    """Return the submission of a job whose module lies in a folder.

    The files of the folder are packed where the job names no source, or a ConfigMap that is not
    among the companions: that is made of these files too.

    Raises:
        SpecError: the files cannot be packed.
    """
    job = copy.deepcopy(dict(job))
    trainer = job["spec"].get("trainer")
    if trainer is None or not _needs_files(trainer, companions, folder):
        return Submission(job, companions, ())
    archive = sources.pack(folder, trainer.get("module", "model.py"))
    name = job["metadata"]["name"]
    trainer["source"] = archive.source(name)
    return Submission(job, companions, archive.config_maps(name))


def _needs_files(
    trainer: Mapping[str, Any], companions: Sequence[Mapping[str, Any]], folder: pathlib.Path
) -> bool:
    reference = trainer.get("source")
    if reference is None:
        return (folder / str(trainer.get("module", "model.py"))).is_file()
    name: str | None = reference.get("configMap", {}).get("name")
    brought = {d["metadata"]["name"] for d in companions if d["kind"] == "ConfigMap"}
    return name is not None and name not in brought


def _claim(job: Mapping[str, Any], size: str) -> Mapping[str, Any]:
    checkpoint = job["spec"].get("trainer", {}).get("checkpoint") or {}
    if "claim" not in checkpoint:
        raise load.SpecError(
            f"--claim {size}: the job names no claim; set spec.trainer.checkpoint.claim, such as"
            f" --set spec.trainer.checkpoint.claim={job['metadata']['name']}"
        )
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": checkpoint["claim"]},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        },
    }


async def submit(cluster: backend.ClusterBackend, submission: Submission) -> models.Job:
    """Create a job with all that it needs.

    Sources come before the job, so that no pod waits for them, and get the job as their owner
    after it. If this process dies in between, the next submission of the same files goes on with
    what is there.

    Raises:
        Failure: the API server refuses, or a job of the name exists.
        SpecError: it refuses an object as wrong.
    """
    with answers.explained(cluster.context):
        await _refuse_second(cluster, submission.name)
        for companion in submission.companions:
            await _ensure(cluster, _COMPANIONS[companion["kind"]], companion)
        for config_map in submission.sources:
            await _ensure_without_owner(cluster, config_map)
        body = await cluster.api.create(resources.JOBS, cluster.namespace, submission.job)
        job = objects.parse_job(body)
        for config_map in submission.sources:
            path = resources.CONFIG_MAPS.path(cluster.namespace, config_map["metadata"]["name"])
            await cluster.api.patch(
                path, {"metadata": {"ownerReferences": [objects.owner_reference(job)]}}
            )
    return job


async def _refuse_second(cluster: backend.ClusterBackend, name: str) -> None:
    with contextlib.suppress(api_errors.NotFound):
        await cluster.api.get(resources.JOBS.path(cluster.namespace, name))
        raise errors.Failure(
            f"job {name!r} exists in namespace {cluster.namespace!r}: delete it (tfparallel delete"
            f" {name}), or choose another name with --name"
        )


async def _ensure(
    cluster: backend.ClusterBackend, resource: resources.Resource, manifest: Mapping[str, Any]
) -> None:
    """Create an object unless one of its name is there."""
    with contextlib.suppress(api_errors.AlreadyExists):
        await cluster.api.create(resource, cluster.namespace, manifest)


async def _ensure_without_owner(
    cluster: backend.ClusterBackend, config_map: Mapping[str, Any]
) -> None:
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
