"""Refusals of creations, with sentences that say why and what to do."""

import re
from typing import Any

from tfparallel_operator.api import names, pods, quantities
from tfparallel_operator.api_server import client, errors
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.life import obstacles
from tfparallel_operator.engine.observe import records
from tfparallel_trainer.contract import documentation

_TOO_MANY = 429


_STEP = re.compile(r"\[([^\]]{0,500})\]|([^.\[]+)")
"""One step of a field's path: an index or key in brackets, or a name."""


def invalid(manifest: decision.Manifest, error: errors.Invalid) -> observation.Refusal:
    """Say that an object is invalid, and whether the job's spec is at fault."""
    sentence = str(error)
    if manifest["kind"] != "Pod":
        return observation.Refusal(names.Reason.INVALID_SPEC, sentence)
    role = manifest["metadata"]["labels"][names.LABEL_ROLE]
    if error.causes and all(_is_of_cluster(manifest, cause.field) for cause in error.causes):
        adds = "what the cluster adds, such as defaults of a LimitRange, makes the pod invalid"
        reason, objects = names.Reason.DEFAULTS_CONFLICT, (_name(manifest),)
        return observation.Refusal(
            reason, f"{adds}: {sentence}", final=False, objects=objects, role=role
        )
    message = f"the API server refused the pod of the template of role {role}: {sentence}"
    return observation.Refusal(names.Reason.INVALID_TEMPLATE, message, role=role)


def _is_of_cluster(manifest: decision.Manifest, field: str) -> bool:
    """Whether the cluster has added the field that the API server refuses.

    The API server compares requests with limits, which a LimitRange may have added. Webhooks add
    containers and volumes.
    """
    value: Any = manifest
    for index, name in _STEP.findall(field):
        if isinstance(value, list) and index.isdecimal():
            if int(index) >= len(value):
                return True
            value = value[int(index)]
        elif isinstance(value, dict) and name == "resources":
            resources = pods.Resources.model_validate(value.get("resources") or {})
            compares = field.endswith(".resources.requests")  # Its keys have fields of their own.
            return compares and not any(quantities.find_problems((), resources))
        elif isinstance(value, dict) and (index or name) in value:
            value = value[index or name]
        else:
            return False
    return False


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
    """Return the refusal of a creation that may succeed later."""
    reason = names.Reason.ADMISSION_DENIED
    if "exceeded quota" in sentence:
        reason = names.Reason.QUOTA_EXCEEDED
    elif "no PriorityClass with name" in sentence:
        reason = names.Reason.PRIORITY_CLASS_NOT_FOUND
    return observation.Refusal(reason, sentence, final=False)


def unavailable(manifest: decision.Manifest, error: errors.Unavailable) -> observation.Refusal:
    """Say that the API server, or a webhook that it calls, failed at a creation."""
    reason = names.Reason.SERVER_UNAVAILABLE
    if error.status == _TOO_MANY:
        reason = names.Reason.TOO_MANY_REQUESTS
    return observation.Refusal(reason, str(error), final=False, objects=(_name(manifest),))


def hold(
    existing: client.Object, manifest: decision.Manifest, whose: obstacles.Whose
) -> obstacles.Holder:
    """Return the holder of a name that a job needs."""
    return obstacles.Holder(
        _name(manifest),
        whose,
        records.deleting(existing),
        records.delete_by(existing),
        (existing.get("spec") or {}).get("nodeName", ""),
        records.finalizers(existing),
    )


def _name(manifest: decision.Manifest) -> str:
    """Return an object as kubectl names it."""
    return f"{manifest['kind'].lower()}/{manifest['metadata']['name']}"


def foreign_claim(manifest: decision.Manifest) -> observation.Refusal:
    """Say that the claim of a template exists, and is not the job's."""
    name, job = manifest["metadata"]["name"], manifest["metadata"]["labels"][names.LABEL_JOB]
    message = (
        f"PersistentVolumeClaim {name} exists, and no job of this name has made it. Name it in"
        " trainer.checkpoint.claim or trainer.volumes instead of a template, or let the job use it"
        f" by kubectl label pvc {name} {names.LABEL_JOB}={job}"
    )
    return observation.Refusal(names.Reason.NAME_CONFLICT, message, final=False)
