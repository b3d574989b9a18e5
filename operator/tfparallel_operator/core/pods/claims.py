"""Builds the claims of a job from its claim templates. Pure.

The operator creates the claims again with every set of pods, so it does not have to observe them.
Either a claim exists already, or a person has deleted it. A claim carries the job's label. It has
an owner only with whenDeleted Delete.
"""

from tfparallel_operator.api import claim_templates, types
from tfparallel_operator.core import decision
from tfparallel_operator.core.pods import ownership


def name(job: types.TFParallelJob, claim: str) -> str:
    """Return the name of the claim in the cluster, given the name of a template or of a claim."""
    templates = {template.metadata.name for template in job.spec.volume_claim_templates}
    return f"{job.metadata.name}-{claim}" if claim in templates else claim


def manifests(job: types.TFParallelJob) -> list[decision.Manifest]:
    """Build the claims of a job's templates."""
    return [_manifest(job, template) for template in job.spec.volume_claim_templates]


def _manifest(
    job: types.TFParallelJob, template: claim_templates.ClaimTemplate
) -> decision.Manifest:
    metadata = ownership.metadata(job, name(job, template.metadata.name))
    metadata["labels"] = {**template.metadata.labels, **metadata["labels"]}
    if template.metadata.annotations:
        metadata["annotations"] = dict(template.metadata.annotations)
    policy = job.spec.persistent_volume_claim_retention_policy
    if policy.when_deleted is claim_templates.WhenDeleted.RETAIN:
        del metadata["ownerReferences"]
    api_version, kind = decision.CLAIM
    spec = template.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
