"""The Workload of a job in a queue of Kueue: its requests, its conditions and its changes. Pure.

Kueue expects of the operator what its own integrations do.

- It creates no pods before the Workload is admitted.
- Pods have the node labels of the flavors whose quota they use.
- After an eviction, it deletes the pods, and then releases the reservation.
- It sets `PodsReady` while the job runs, and `Finished` at the end.
"""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from tfparallel_operator.api import names, types
from tfparallel_operator.core import decision, installation, observation, replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import ownership, pod_builder
from tfparallel_operator.core.queue import gang, workload_hashes
from tfparallel_operator.core.status import replica_records

Condition = Mapping[str, Any]
"""One condition of a Workload as JSON."""

_PREEMPTED = "Preempted"
"""The only eviction reason after which Kueue requeues at once."""

_POD_FIELDS = ("hostname", "subdomain", "schedulingGroup")
_CONTAINER_FIELDS = ("name", "image", "resources", "restartPolicy")


def name(job_name: str) -> str:
    """Return the name of a job's Workload, with the job's kind as in Kueue's own."""
    return f"{names.SINGULAR}-{job_name}"


def is_true(workload: observation.Workload, kind: str) -> bool:
    """Whether a condition of a Workload is true."""
    condition = _condition(workload, kind)
    return condition is not None and condition.get("status") == "True"


def matches_job(layout: Layout, workload: observation.Workload) -> bool:
    """Whether a Workload has the requests of the job.

    While it has quota, its queue, its priority and its flavors stay. A pending Workload with hashes
    of another version is created again.
    """
    counts = {role.label: count for role, count in layout.counts.items()}
    if workload.deleting or is_true(workload, "Finished") or workload.counts != counts:
        return False
    resources, scheduling = workload_hashes.parse(workload)
    if resources not in ("", workload_hashes.of_resources(layout)) or _runs_again(layout, workload):
        return False
    labels = layout.job.metadata.labels
    return is_true(workload, "QuotaReserved") or (
        scheduling == workload_hashes.of_scheduling(layout)
        and workload.queue == labels.get(names.LABEL_QUEUE)
        and workload.priority_class == labels.get(names.LABEL_WORKLOAD_PRIORITY, "")
    )


def is_evicted(workload: observation.Workload) -> bool:
    """Whether Kueue has evicted or deactivated a Workload."""
    return not workload.active or is_true(workload, "Evicted")


def waiting_reason(workload: observation.Workload) -> str:
    """Return Kueue's reason why a Workload is not admitted."""
    if not workload.active:
        return "Deactivated: the Workload's spec.active is false"
    has_quota = is_true(workload, "QuotaReserved") and not is_true(workload, "Evicted")
    if has_quota and workload.pending_checks:
        return "; ".join(workload.pending_checks)
    for kind, value in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False")):
        condition = _condition(workload, kind)
        if condition is not None and condition.get("status") == value:
            return f"{condition.get('reason', kind)}: {condition.get('message', '')}"
    return "Kueue has not looked at it yet"


def manifest(layout: Layout, settings: installation.InstallationSettings) -> decision.Manifest:
    """Build the Workload of a job. The engine adds the number of its priority at the creation."""
    job = layout.job
    metadata = ownership.metadata(job, name(job.metadata.name))
    metadata["labels"] = {**metadata["labels"], names.LABEL_JOB_UID: job.metadata.uid}
    metadata["annotations"] = {names.ANNOTATION_RESOURCES: workload_hashes.annotation(layout)}
    pods = pod_builder.PodBuilder(layout, settings, job.status)
    pod_sets = [_pod_set(layout, role, pods, settings) for role in layout.specs]
    queue = job.metadata.labels[names.LABEL_QUEUE]
    spec: dict[str, Any] = {"queueName": queue, "podSets": pod_sets}
    group, kind = names.OF_WORKLOADS, "WorkloadPriorityClass"
    priority_class = job.metadata.labels.get(names.LABEL_WORKLOAD_PRIORITY)
    if not priority_class:
        group, kind = names.OF_PODS, "PriorityClass"
        of_pods = (pod_set["template"]["spec"].get("priorityClassName") for pod_set in pod_sets)
        priority_class = next(filter(None, of_pods), None)
    if priority_class:
        spec["priorityClassRef"] = {"group": group, "kind": kind, "name": priority_class}
    api_version, kind = decision.WORKLOAD
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def apply_admission(
    manifest: decision.Manifest,
    workload: observation.Workload,
    flavors: Mapping[str, observation.Flavor],
) -> None:
    """Add the admission's labels, node selector, tolerations and gate to a pod, in place."""
    metadata, spec = manifest["metadata"], manifest["spec"]
    pod_set = metadata["labels"][names.LABEL_ROLE]
    metadata["labels"][names.LABEL_POD_SET] = pod_set
    metadata["annotations"][names.ANNOTATION_WORKLOAD] = workload.name
    admitted = workload.admission.get(pod_set, observation.PodSetAdmission())
    selector = dict(spec.get("nodeSelector") or {})
    tolerations = list(spec.get("tolerations") or ())
    for flavor in dict.fromkeys(admitted.flavors):
        selector |= flavors[flavor].node_labels
        tolerations += flavors[flavor].tolerations
    for update in admitted.updates:
        metadata["labels"] |= update.get("labels") or {}
        metadata["annotations"] |= update.get("annotations") or {}
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
    if selector:
        spec["nodeSelector"] = selector
    if tolerations:
        spec["tolerations"] = [
            toleration
            for index, toleration in enumerate(tolerations)
            if toleration not in tolerations[:index]
        ]
    if admitted.placed:
        gates = [*(spec.get("schedulingGates") or ()), {"name": names.TOPOLOGY_GATE}]
        spec["schedulingGates"] = gates


def release_quota(workload: observation.Workload, now: datetime.datetime) -> decision.Change:
    """Release the quota of a Workload, which pods no longer use."""
    evicted = _condition(workload, "Evicted") or {}
    reason, message = evicted.get("reason", "Pending"), evicted.get("message", "")
    conditions = [
        ("QuotaReserved", False, "Pending", message),
        ("Admitted", False, "NoReservation", "The workload has no reservation"),
        ("PodsReady", False, "WaitForStart", "Not all pods are ready or succeeded"),
    ]
    if evicted:
        conditions.append(("Requeued", reason == _PREEMPTED, reason, message))
    # The next attempt restarts all replicas.
    again = {"reclaimablePods": None} if workload.reclaimable else {}
    return _change(workload, conditions, now, admission=None, **again)


def finished(
    workload: observation.Workload, succeeded: bool, message: str, now: datetime.datetime
) -> decision.Change:
    """Mark a Workload as finished, which releases its quota."""
    reason = "Succeeded" if succeeded else "Failed"
    return _change(workload, [("Finished", True, reason, message)], now)


def progress(
    workload: observation.Workload, ready: bool, ended: Mapping[str, int], now: datetime.datetime
) -> tuple[decision.Change, ...]:
    """Set `PodsReady`, and the number of pods of each pod set that no longer use quota.

    Released quota cannot be acquired again. Kueue's field manager owns other fields of the status.
    """
    counts = {
        name: max(count, workload.reclaimable.get(name, 0))
        for name, count in ended.items()
        if count or name in workload.reclaimable
    }
    status: dict[str, Any] = {}
    if counts != workload.reclaimable:
        pods = [{"name": name, "count": count} for name, count in counts.items()]
        status["reclaimablePods"] = pods
    conditions = _pods_ready(workload, ready)
    return (_change(workload, conditions, now, **status),) if conditions or status else ()


def _pods_ready(workload: observation.Workload, ready: bool) -> list[tuple[str, bool, str, str]]:
    """Return the condition, if it changes.

    Kueue has different timeouts for a start and for a recovery.
    """
    before = _condition(workload, "PodsReady") or {}
    recovers = before.get("reason") in ("Started", "Recovered", "WaitForRecovery")
    if ready == (before.get("status") == "True") and before:
        return []
    reason = ("Recovered" if recovers else "Started") if ready else "WaitForStart"
    message = "All pods run or have succeeded" if ready else "Not all pods are ready or succeeded"
    if recovers and not ready:
        reason, message = "WaitForRecovery", "At least one pod was lost, waiting for recovery"
    return [("PodsReady", ready, reason, message)]


def deletions(workloads: Iterable[observation.Workload]) -> tuple[decision.Deletion, ...]:
    """Delete Workloads of jobs that have left their queue."""
    return tuple(
        decision.Deletion(workload.name, workload.uid, decision.WORKLOAD)
        for workload in workloads
        if not workload.deleting
    )


def _runs_again(layout: Layout, workload: observation.Workload) -> bool:
    """Whether a replica whose quota was released must run again."""
    for role in layout.specs:
        record = replica_records.read(layout.job.status, role)
        if len(record.completed | record.ignored) < workload.reclaimable.get(role.label, 0):
            return True
    return False


def _pod_set(
    layout: Layout,
    role: types.Role,
    pods: pod_builder.PodBuilder,
    settings: installation.InstallationSettings,
) -> dict[str, Any]:
    """Build the pod set of a role: the fields that determine quota and placement."""
    of_role = pods.build(replicas.Replica(role, 0))
    gang.join(of_role, layout.job, settings.gangs)
    spec = {key: value for key, value in of_role["spec"].items() if key not in _POD_FIELDS}
    for kind in workload_hashes.CONTAINER_KINDS:
        if kind in spec:
            spec[kind] = [
                {key: value for key, value in container.items() if key in _CONTAINER_FIELDS}
                for container in spec[kind]
            ]
    written = (layout.specs[role].template or {}).get("metadata") or {}
    labels = {**ownership.labels(layout.job), names.LABEL_ROLE: role.label}
    metadata = {
        "labels": {**(written.get("labels") or {}), **labels},
        "annotations": dict(written.get("annotations") or {}),
    }
    template = {"metadata": metadata, "spec": spec}
    return {"name": role.label, "count": layout.counts[role], "template": template}


def _condition(workload: observation.Workload, kind: str) -> Condition | None:
    return next(
        (condition for condition in workload.conditions if condition.get("type") == kind), None
    )


def _change(
    workload: observation.Workload,
    changed: Iterable[tuple[str, bool, str, str]],
    now: datetime.datetime,
    **status: Any,
) -> decision.Change:
    """Set conditions of a Workload, if its version is unchanged, because a patch replaces lists."""
    moment = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = {condition["type"]: condition for condition in workload.conditions}
    for kind, true, reason, message in changed:
        value, before = str(true), conditions.get(kind, {})
        moved = before.get("status") != value
        conditions[kind] = {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastTransitionTime": moment if moved else before["lastTransitionTime"],
        }
    fields = {"status": {"conditions": list(conditions.values()), **status}}
    return decision.Change(
        decision.WORKLOAD, workload.name, workload.uid, fields, workload.version, "status"
    )
