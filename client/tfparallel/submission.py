"""Turns a job's file into the objects to create in a cluster."""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfparallel import job_variables, script_sources, source_packing, validation
from tfparallel.job_source import overrides, source
from tfparallel_operator.api import load, names, yaml_documents
from tfparallel_operator.api_server import resources

COMPANIONS = {
    "ConfigMap": resources.CONFIG_MAPS,
    "Secret": resources.SECRETS,
    "PersistentVolumeClaim": resources.CLAIMS,
}
"""Kinds of objects in a job's file besides the job."""


@dataclasses.dataclass(frozen=True, slots=True)
class Submission:
    """The objects to create for a job, in order; the job comes last."""

    job: Mapping[str, Any]
    companions: Sequence[Mapping[str, Any]]
    """Other objects of the job's file; they stay when the job is deleted."""
    sources: Sequence[Mapping[str, Any]]
    """ConfigMaps with the user's files: they are deleted with the job."""

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.job["metadata"]["name"])


@dataclasses.dataclass(frozen=True, slots=True)
class Additions:
    """Changes that the command's options make to a job's file."""

    name: str | None = None
    """Name of the job, instead of the one in the file."""
    claim_size: str | None = None
    """Size of the claim for checkpoints, such as 10Gi. The claim is created if this is set."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    secrets: Sequence[str] = ()
    """Names of Secrets whose keys become variables."""


def read(
    file: pathlib.Path, assignments: Sequence[str] = (), additions: Additions | None = None
) -> Submission:
    """Read a job's file, and pack what lies next to it.

    Args:
        file: YAML with one job, and the ConfigMaps, Secrets and claims that it needs.
        assignments: FIELD=VALUE, as `--set` takes them.
        additions: what else is set.

    Raises:
        SpecError: with a sentence for each problem.
    """
    documents = yaml_documents.parse_objects(source.read_text(file), str(file))
    additions = additions or Additions()
    named = [] if additions.name is None else [f"metadata.name={additions.name}"]
    changes = [*assignments, *named]
    job = overrides.apply(yaml_documents.find_job(documents, str(file)), changes)
    with validation.located(file, changes):
        load.parse_manifest(job)
    job = job_variables.add(job, additions.variables, additions.secrets)
    load.parse_manifest(job)
    others = [document for document in documents if document.get("kind") != names.KIND]
    if foreign := [str(d.get("kind")) for d in others if d.get("kind") not in COMPANIONS]:
        raise load.SpecError(
            f"{file}: holds {', '.join(foreign)}, and a submission brings only"
            f" {', '.join(COMPANIONS)}: apply the rest with kubectl"
        )
    if additions.claim_size is not None:
        others.append(_claim(job, additions.claim_size))
    return build(job, others, file.resolve().parent)


def build(
    job: Mapping[str, Any], companions: Sequence[Mapping[str, Any]], folder: pathlib.Path
) -> Submission:
    """Return the submission of a job whose module lies in a folder.

    The files of the folder are packed where the job names no source, or a ConfigMap that is not
    among the companions: that is made of these files too. A job of a script names it in a template.

    Raises:
        SpecError: the files cannot be packed, or the module would end the trainer at its import.
    """
    job = _unshared(job)
    name = job["metadata"]["name"]
    trainer = job["spec"].get("trainer")
    brought = {d["metadata"]["name"] for d in companions if d["kind"] == "ConfigMap"}
    scripts = [] if trainer is not None else script_sources.find(job, brought)
    if trainer is not None and _needs_files(trainer, brought, folder):
        archive = source_packing.pack(folder, trainer.get("module", "model.py"))
        source.check_packed_module(load.parse_job(job), folder)
        trainer["source"] = archive.source(name)
    elif scripts:
        archive = source_packing.pack(folder, scripts[0].program, scripts[0].field)
        for script in scripts:
            script.fill(archive.source(name))
    else:
        return Submission(job, companions, ())
    return Submission(job, companions, archive.config_maps(name))


def _unshared(value: Any) -> Any:
    """Return a copy in which no two fields are one object, as YAML's anchors make them."""
    if isinstance(value, Mapping):
        return {key: _unshared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unshared(inner) for inner in value]
    return value


def _needs_files(
    trainer: Mapping[str, Any], brought: Collection[str], folder: pathlib.Path
) -> bool:
    reference = trainer.get("source")
    if reference is None:
        return (folder / str(trainer.get("module", "model.py"))).is_file()
    name: str | None = reference.get("configMap", {}).get("name")
    return name is not None and name not in brought


def _claim(job: Mapping[str, Any], size: str) -> Mapping[str, Any]:
    if "trainer" not in job["spec"]:
        raise load.SpecError(
            f"--claim {size}: the job has no spec.trainer, whose checkpoints a claim would keep."
            " Write the claim of a script into spec.volumeClaimTemplates"
        )
    checkpoint = job["spec"]["trainer"].get("checkpoint") or {}
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
