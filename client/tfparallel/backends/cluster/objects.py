"""Converts the API server's JSON to the client's models."""

import datetime
from typing import Any

import pydantic

from tfparallel import models
from tfparallel_operator.api import gate, job_status, load, names
from tfparallel_operator.api_server import client as api
from tfparallel_operator.core import observation, pending_reasons, remedies

_LABEL_VERSION = "app.kubernetes.io/version"
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def parse_job(body: api.Object) -> models.Job:
    """Return a job.

    Raises:
        SpecError: its status is none that this version can read.
    """
    job = parse_listed_job(body)
    if job.problem:
        raise load.SpecError(job.problem)
    return job


def parse_listed_job(body: api.Object) -> models.Job:
    """Return a job.

    If its status cannot be read, the job has a problem, and other jobs are still listed.
    """
    metadata = body["metadata"]
    status, problem = job_status.JobStatus(), ""
    try:
        status = job_status.JobStatus.model_validate(body.get("status") or {})
    except pydantic.ValidationError as error:
        problem = (
            f"the status of {metadata['name']} cannot be read: {error.errors()[0]['msg']}. Upgrade"
            " this command to the version of the operator"
        )
    if gate.STATUS_PROBLEM in body:
        reason = body[gate.STATUS_PROBLEM]
        problem = (
            f"the operator leaves {metadata['name']} alone, because it cannot read its {reason}"
        )
    return models.Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        created=observation.parse_time(metadata.get("creationTimestamp")) or _EPOCH,
        status=status,
        manifest=body,
        problem=problem,
    )


def parse_pod(
    body: api.Object, status_of_job: job_status.JobStatus | None = None
) -> models.Replica:
    """Return the replica of a pod.

    Args:
        body: the pod.
        status_of_job: says whether a pod of an earlier attempt has stayed.
    """
    metadata, status = body["metadata"], body.get("status", {})
    labels = metadata.get("labels", {})
    trains = _find_trainer(status)
    state = trains.get("state", {})
    times = state.get("terminated") or state.get("running") or {}
    init = {} if times else _find_blocking_init(status)
    ended = (init or trains).get("state", {}).get("terminated")
    phase = "Terminating" if "deletionTimestamp" in metadata else status.get("phase", "Pending")
    return models.Replica(
        name=f"{labels.get(names.LABEL_ROLE)}-{labels.get(names.LABEL_INDEX)}",
        pod=metadata["name"],
        attempt=_find_attempt(_number(labels.get(names.LABEL_ATTEMPT, "")), status_of_job),
        phase=phase,
        node=body.get("spec", {}).get("nodeName", ""),
        reason=_reason(status, init or trains),
        exit_code=None if ended is None else ended.get("exitCode"),
        created=observation.parse_time(metadata.get("creationTimestamp")),
        started=observation.parse_time(times.get("startedAt")),
        ended=observation.parse_time(times.get("finishedAt")),
        memory_limit=_memory_limit(body.get("spec", {})),
        log_container=init["name"] if init and ended else names.CONTAINER,
    )


def _find_attempt(created_for: int, status: job_status.JobStatus | None) -> int:
    """Return the attempt that a pod belongs to, which was created for that one or an earlier."""
    if status is None or created_for not in status.pod_attempts:
        return created_for
    return status.attempt


def claim_names(job: models.Job) -> frozenset[str]:
    """Return the names of the claims that a job's replicas mount."""
    spec = job.manifest.get("spec", {})
    trainer = spec.get("trainer") or {}
    templates = {template["metadata"]["name"] for template in spec.get("volumeClaimTemplates", ())}
    listed = [(trainer.get("checkpoint") or {}).get("claim")]
    listed += [volume.get("claim") for volume in trainer.get("volumes", ())]
    for role in job.roles.values():
        volumes = role.get("template", {}).get("spec", {}).get("volumes", ())
        listed += [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes]
    named = {name if name not in templates else f"{job.name}-{name}" for name in listed if name}
    return frozenset(named | {f"{job.name}-{name}" for name in templates})


def parse_operator(body: api.Object) -> models.Operator:
    """Return the operator of a Deployment."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status", {})
    variables = {
        variable["name"]: variable.get("value", "")
        for container in spec.get("template", {}).get("spec", {}).get("containers", ())
        for variable in container.get("env", [])
    }
    listed = variables.get("TFPARALLEL_WATCH_NAMESPACES", "").split(",")
    return models.Operator(
        namespace=metadata["namespace"],
        name=metadata["name"],
        replicas=spec.get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        watched=tuple(name.strip() for name in listed if name.strip()),
        trainer_image=variables.get("TFPARALLEL_TRAINER_IMAGE", ""),
        version=installed_version(body),
    )


def installed_version(body: api.Object) -> str:
    """Return the version in the labels that chart and kustomization set; empty: none."""
    return str(body["metadata"].get("labels", {}).get(_LABEL_VERSION, ""))


def owner_reference(job: models.Job) -> dict[str, Any]:
    """Return the owner reference by which an object is deleted with a job."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def _find_trainer(status: api.Object) -> api.Object:
    """Return the status of the container that trains; empty: it has none yet."""
    statuses: list[api.Object] = status.get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == names.CONTAINER), {})


def _find_blocking_init(status: api.Object) -> api.Object:
    """Return the status of the first init container that failed or cannot start; empty: none."""
    for container in status.get("initContainerStatuses") or ():
        state = container.get("state", {})
        failed = state.get("terminated", {}).get("exitCode")
        if failed or state.get("waiting", {}).get("reason", "") not in pending_reasons.UNREMARKABLE:
            return dict(container)
    return {}


def _memory_limit(spec: api.Object) -> str:
    for container in spec.get("containers", ()):
        if container["name"] == names.CONTAINER:
            return str(container.get("resources", {}).get("limits", {}).get("memory", ""))
    return ""


def _reason(status: api.Object, container: api.Object) -> str:
    state = container.get("state", {})
    for kind in ("waiting", "terminated"):
        if kind in state:
            texts = (state[kind].get("reason", ""), state[kind].get("message", ""))
            return ": ".join(" ".join(word.split()) for word in texts if word)
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            return remedies.without_preemption(text)
    texts = (status.get("reason", ""), status.get("message", ""))  # such as Evicted
    return ": ".join(" ".join(word.split()) for word in texts if word)


def _number(label: str) -> int:
    """Return the number in a label. Everyone who may change the pod may change the label."""
    return int(label) if label.isdecimal() else 0
