"""The claims of a job that its templates ask for. Pure.

A claim is created with every set of pods, so that nothing has to be observed: it exists already, or
a person has deleted it. It carries the job's label; only with whenDeleted Delete it has an owner.
"""

from tfparallel_operator.api import claims, types
from tfparallel_operator.core import decision
from tfparallel_operator.core.pods import ownership


def name(job: types.TFParallelJob, claim: str) -> str:
    """Return the claim's name in the cluster: that of a template, or its own."""
    templates = {template.metadata.name for template in job.spec.volume_claim_templates}
    return f"{job.metadata.name}-{claim}" if claim in templates else claim


def manifests(job: types.TFParallelJob) -> list[decision.Manifest]:
    """Build the claims of a job's templates."""
    return [_manifest(job, template) for template in job.spec.volume_claim_templates]


def _manifest(job: types.TFParallelJob, template: claims.ClaimTemplate) -> decision.Manifest:
    metadata = ownership.metadata(job, name(job, template.metadata.name))
    metadata["labels"] = {**template.metadata.labels, **metadata["labels"]}
    if template.metadata.annotations:
        metadata["annotations"] = dict(template.metadata.annotations)
    policy = job.spec.persistent_volume_claim_retention_policy
    if policy.when_deleted is claims.WhenDeleted.RETAIN:
        del metadata["ownerReferences"]
    api_version, kind = decision.CLAIM
    spec = template.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
