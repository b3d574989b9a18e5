"""Sentences for creates that the API server refuses."""

from tfparallel_operator.api import names
from tfparallel_operator.core import decision, observation
from tfparallel_trainer.contract import documentation


def invalid(manifest: decision.Manifest, sentence: str) -> observation.Refusal:
    """Say that the API server can never take an object."""
    if manifest["kind"] != "Pod":
        return observation.Refusal(names.Reason.INVALID_SPEC, sentence)
    role = manifest["metadata"]["labels"][names.LABEL_ROLE]
    message = f"the API server refused the pod of the template of role {role}: {sentence}"
    return observation.Refusal(names.Reason.INVALID_TEMPLATE, message)


def not_installed(manifest: decision.Manifest) -> observation.Refusal:
    """Say that the API server lacks a resource that the job needs."""
    group = manifest["apiVersion"].partition("/")[0]
    if manifest["kind"] == "Workload":
        section = documentation.reference(documentation.Section.QUEUES)
        queue = manifest["spec"]["queueName"]
        message = (
            f"the API server does not know Workloads of {group}, which the label"
            f" {names.LABEL_QUEUE}={queue} needs (see {section})"
        )
        reason = names.Reason.KUEUE_NOT_INSTALLED
        return observation.Refusal(reason, message, final=False)
    section = documentation.reference(documentation.Section.GANG_SCHEDULER)
    message = f"the API server does not know PodGroups of {group} (see {section})"
    reason = names.Reason.GANG_SCHEDULER_NOT_INSTALLED
    return observation.Refusal(reason, message, final=False)


def refused(sentence: str) -> observation.Refusal:
    """Say what kind of refusal a create met that may succeed later."""
    reason = names.Reason.ADMISSION_DENIED
    if "exceeded quota" in sentence:
        reason = names.Reason.QUOTA_EXCEEDED
    elif "no PriorityClass with name" in sentence:
        reason = names.Reason.PRIORITY_CLASS_NOT_FOUND
    return observation.Refusal(reason, sentence, final=False)


def foreign_claim(manifest: decision.Manifest) -> observation.Refusal:
    """Say that the claim of a template exists, and is not the job's."""
    name, job = manifest["metadata"]["name"], manifest["metadata"]["labels"][names.LABEL_JOB]
    message = (
        f"PersistentVolumeClaim {name} exists, and no job of this name has made it. Name it in"
        " trainer.checkpoint.claim or trainer.volumes instead of a template, or let the job use it"
        f" by kubectl label pvc {name} {names.LABEL_JOB}={job}"
    )
    return observation.Refusal(names.Reason.NAME_CONFLICT, message, final=False)
