"""Converts objects of the API server to the slim values that decisions use."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel_operator.api import gate, names, types
from tfparallel_operator.core import observation, pending_reasons, pod_ends, remedies, replicas

Raw = Mapping[str, Any]

_ROLES = {role.label: role for role in types.Role}

_SCHEDULED = "PodScheduled"
_DISRUPTION = "DisruptionTarget"
"""Condition of a pod that the cluster is about to delete, or has deleted."""


_LONGEST_ANNOTATION = 512
"""Characters of an annotation that are kept: more than the operator writes."""

_LONGEST_NAME = 253
"""Characters of a job's name or uid in an owner reference, which the API server doesn't limit."""

_MOST_FINALIZERS = 16
"""Finalizers of an object that are kept."""

_OF_KUBERNETES = frozenset({"foregroundDeletion", "orphan", "kubernetes.io/pvc-protection"})


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """The job that owns an object."""

    namespace: str
    name: str
    uid: str


def as_owner(job: Raw) -> Owner:
    """Return a job as the owner of its children."""
    metadata = job["metadata"]
    return Owner(metadata["namespace"], metadata["name"], metadata["uid"])


def owner(item: Raw) -> Owner | None:
    """Return the job that controls an object; None: no job does."""
    metadata = item["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == names.KIND:
            if reference.get("apiVersion", "").partition("/")[0] != names.GROUP:
                continue
            if max(len(reference["name"]), len(reference["uid"])) <= _LONGEST_NAME:
                return Owner(metadata.get("namespace", ""), reference["name"], reference["uid"])
    return None


def tfjob(item: Raw) -> str | None:
    """Return the name of the TFJob of Kubeflow that controls an object; None: none does."""
    for reference in item["metadata"].get("ownerReferences") or ():
        if reference.get("controller") and reference.get("kind") == "TFJob":
            return str(reference["name"])
    return None


def deleting(item: Raw) -> bool:
    """Whether an object has a deletion timestamp."""
    return bool(item["metadata"].get("deletionTimestamp"))


def finalizers(item: Raw) -> tuple[str, ...]:
    """Return the finalizers of an object, without those that Kubernetes itself removes."""
    every = item["metadata"].get("finalizers") or ()
    return tuple(finalizer for finalizer in every if finalizer not in _OF_KUBERNETES)[
        :_MOST_FINALIZERS
    ]


def delete_by(item: Raw) -> datetime.datetime | None:
    """Return when the grace period of an object that is being deleted ends."""
    return observation.parse_time(item["metadata"].get("deletionTimestamp"))


def ready(node: Raw) -> bool:
    """Whether a node's kubelet says that it is ready."""
    return bool(_find_condition(node.get("status") or {}, "Ready"))


def pod(item: Raw) -> observation.Pod | None:
    """Convert a pod; None: it lacks the operator's labels."""
    metadata = item["metadata"]
    labels = metadata.get("labels") or {}
    role = _ROLES.get(labels.get(names.LABEL_ROLE, ""))
    numbers = [
        labels.get(label, "")
        for label in (names.LABEL_INDEX, names.LABEL_ATTEMPT, names.LABEL_REPLICA_ATTEMPT)
    ]
    if role is None or not all(number.isdecimal() for number in numbers):
        return None
    index, attempt, replica_attempt = map(int, numbers)
    status, problem = _status(item)
    container = _container(status)
    state: Raw = container.get("state") or {}
    ended = _exit(item, status, container)
    target = _find_condition(status, _DISRUPTION)
    source: Raw = status if status.get("reason") else target
    return observation.Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        replica=replicas.Replica(role, index),
        attempt=attempt,
        replica_attempt=replica_attempt,
        phase=_phase(status, state, ended),
        deleting=deleting(item),
        hidden=labels.get(names.LABEL_MANAGED_BY) != names.MANAGED_BY,
        delete_by=delete_by(item),
        node=(item.get("spec") or {}).get("nodeName", ""),
        unschedulable_since=_find_schedule_time(status, "False"),
        scheduled_at=_find_schedule_time(status, "True"),
        started_at=_find_start_time(state),
        disrupted=bool(target),
        reason=gate.cut(source.get("reason", "")),
        message=gate.cut(source.get("message", "")),
        exit=ended,
        lingers=ended is not None and _runs(status),
        finalizers=finalizers(item) if deleting(item) else (),
        waiting="" if ended else problem or _waiting(status),
        agent=_annotation(item, names.ANNOTATION_AGENT),
    )


def _status(item: Raw) -> tuple[Raw, str]:
    """Return the status of a pod, and its problem; empty: none.

    If the status exceeds the gate's limits, its texts are cut. If that isn't enough, only its phase
    is kept.
    """
    status: Raw = item.get("status") or {}
    if not gate.find_excess(status):
        return status, ""
    shortened: Raw = gate.cut_texts(status)
    problem = gate.find_excess(shortened)
    return ({"phase": status.get("phase")}, f"the pod's {problem}") if problem else (shortened, "")


def group(api_version: str, item: Raw) -> observation.Group | None:
    """Convert a PodGroup; None: it is being deleted.

    Args:
        api_version: its version, which items of a list lack.

    Raises:
        gate.BeyondLimitsError: its spec exceeds the gate's limits for a status.
    """
    if deleting(item):
        return None
    metadata = item["metadata"]
    return observation.Group(
        api_version=api_version,
        name=metadata["name"],
        uid=metadata["uid"],
        spec=_checked(item.get("spec")),
    )


def _checked(part: Any) -> Raw:
    """Return a part of an object, if it is within the limits of a status."""
    if problem := gate.find_excess(part):
        raise gate.BeyondLimitsError(problem)
    checked: Raw = part or {}
    return checked


def installation(item: Raw) -> str:
    """Return the installation of the operator that a ConfigMap names; empty: none."""
    return _annotation(item, names.ANNOTATION_INSTALLATION)


def config(item: Raw) -> observation.Config | None:
    """Convert a ConfigMap; None: it is being deleted."""
    if deleting(item):
        return None
    metadata = item["metadata"]
    return observation.Config(
        metadata["name"],
        metadata["uid"],
        _annotation(item, names.ANNOTATION_CONTENT),
        installation(item),
        _annotation(item, names.ANNOTATION_QUESTION),
    )


def _annotation(item: Raw, name: str) -> str:
    """Return an annotation, cut to the length of ours, because users may change it."""
    annotations = item["metadata"].get("annotations") or {}
    return str(annotations.get(name, ""))[:_LONGEST_ANNOTATION]


def _container(status: Raw) -> Raw:
    """Return the status of the container tensorflow; empty: the kubelet hasn't written it yet."""
    statuses: Sequence[Raw] = status.get("containerStatuses") or ()
    return next((status for status in statuses if status.get("name") == names.CONTAINER), {})


def _runs(status: Raw) -> bool:
    """Whether a container runs. The phase of the pod changes only some time after the last exit."""
    return any(
        "running" in (container.get("state") or {})
        for container in status.get("containerStatuses") or ()
    )


def _exit(item: Raw, status: Raw, container: Raw) -> observation.Exit | None:
    ended = _first_end(container)
    if ended is not None:
        return observation.Exit(
            code=int(ended["exitCode"]),
            reason=gate.cut(ended.get("reason", "")),
            message=gate.cut(ended.get("message", "")),
            finished_at=observation.parse_time(ended.get("finishedAt")),
            restarted="terminated" not in (container.get("state") or {}),
        )
    if status.get("phase") == observation.Phase.FAILED:
        # Evicted before it ran, or its node is gone: no container status says how it ended.
        reason, message = (gate.cut(status.get(field, "")) for field in ("reason", "message"))
        eviction = observation.Exit(code=-1, reason=reason, message=message, finished_at=None)
        return eviction if reason else _exit_before_training(item, status) or eviction
    return None


def _first_end(container: Raw) -> Raw | None:
    """Return how a container has ended; None: it has not.

    A container that the kubelet has restarted in place counts as ended, because only the operator
    restarts replicas.
    """
    for key in ("state", "lastState"):
        ended: Raw | None = (container.get(key) or {}).get("terminated")
        if ended is not None:
            return ended
    return _IN_PLACE if container.get("restartCount") else None


_IN_PLACE = {"exitCode": -1, "reason": pod_ends.RESTARTING_ALL}
"""The end of a container that the pod's status no longer contains."""


def _exit_before_training(item: Raw, status: Raw) -> observation.Exit | None:
    """Return the exit of an init container that failed the pod; None: none did.

    Exit codes of the operator's own container have a meaning. For others, the message has the
    container's name. A sidecar never fails a pod.
    """
    sidecars = {
        container.get("name")
        for container in (item.get("spec") or {}).get("initContainers") or ()
        if container.get("restartPolicy") == "Always"
    }
    statuses = status.get("initContainerStatuses") or ()
    for container in (status for status in statuses if status.get("name") not in sidecars):
        ended = (container.get("state") or {}).get("terminated") or {}
        code = int(ended.get("exitCode", 0))
        if not code:
            continue
        name = container.get("name", "")
        of_source = name == names.SOURCE_CONTAINER
        message = ended.get("message", "")
        return observation.Exit(
            code=code if of_source else -1,
            reason=gate.cut(ended.get("reason", "")),
            message=gate.cut(
                message if of_source else f"init container {name}, code {code} {message}"
            ),
            finished_at=observation.parse_time(ended.get("finishedAt")),
            of_source=of_source,
        )
    return None


def _phase(status: Raw, state: Raw, ended: observation.Exit | None) -> observation.Phase:
    if ended is not None:
        succeeded = ended.code == 0
        return observation.Phase.SUCCEEDED if succeeded else observation.Phase.FAILED
    phase = status.get("phase")
    if phase == observation.Phase.SUCCEEDED:
        return observation.Phase.SUCCEEDED
    if state.get("running") is not None or (phase == observation.Phase.RUNNING and not state):
        return observation.Phase.RUNNING
    return observation.Phase.PENDING


def _find_schedule_time(status: Raw, value: str) -> datetime.datetime | None:
    """Return when the condition PodScheduled got a value; None: it has another one."""
    scheduled = _find_condition(status, _SCHEDULED, value)
    return observation.parse_time(scheduled.get("lastTransitionTime"))


def _find_start_time(state: Raw) -> datetime.datetime | None:
    """Return when a container started, of which this is the state; None: it has not yet."""
    of_process = state.get("running") or state.get("terminated") or {}
    return observation.parse_time(of_process.get("startedAt"))


def _find_condition(status: Raw, kind: str, value: str = "True") -> Raw:
    """Return a condition of an object that has a value; else empty."""
    conditions: Sequence[Raw] = status.get("conditions") or ()
    for condition in conditions:
        if condition.get("type") == kind and condition.get("status") == value:
            return condition
    return {}


def workload(item: Raw) -> observation.Workload:
    """Convert a Workload of Kueue.

    Raises:
        gate.BeyondLimitsError: its status exceeds the gate's limits.
    """
    metadata, spec, status = item["metadata"], item.get("spec") or {}, _checked(item.get("status"))
    admission = status.get("admission") or {}
    checks = status.get("admissionChecks") or ()
    return observation.Workload(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        queue=spec.get("queueName", ""),
        priority_class=_workload_priority_class(spec),
        counts={
            pod_set.get("name", ""): pod_set.get("count", 1)
            for pod_set in spec.get("podSets") or ()
        },
        resources=_annotation(item, names.ANNOTATION_RESOURCES),
        active=spec.get("active", True),
        deleting=deleting(item),
        conditions=tuple(status.get("conditions") or ()),
        cluster_queue=admission.get("clusterQueue", ""),
        admission={
            assignment.get("name", ""): observation.PodSetAdmission(
                flavors=tuple((assignment.get("flavors") or {}).values()),
                updates=tuple(
                    update
                    for check in checks
                    for update in check.get("podSetUpdates") or ()
                    if update.get("name") == assignment.get("name")
                ),
                placed="topologyAssignment" in assignment,
            )
            for assignment in admission.get("podSetAssignments") or ()
        },
        reclaimable={
            pod_set["name"]: pod_set["count"] for pod_set in status.get("reclaimablePods") or ()
        },
        pending_checks=tuple(
            f"{check['name']}: {check.get('message') or 'pending'}"
            for check in checks
            if check.get("state") == "Pending"
        ),
    )


def _workload_priority_class(spec: Raw) -> str:
    """Return a Workload's own priority class, whose field differs between v1beta1 and v1beta2."""
    reference: Raw = spec.get("priorityClassRef") or {
        "group": spec.get("priorityClassSource", "").partition("/")[0],
        "name": spec.get("priorityClassName", ""),
    }
    return str(reference["name"]) if reference["group"] == names.OF_WORKLOADS else ""


def _waiting(status: Raw) -> str:
    """Return why a pod is pending: the kubelet's message, else the scheduler's."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key) or ():
            waiting_state = (container.get("state") or {}).get("waiting") or {}
            if waiting_state.get("reason", "") not in pending_reasons.UNREMARKABLE:
                return _words(waiting_state)
    unscheduled = _find_condition(status, _SCHEDULED, "False")
    return remedies.without_preemption(_words(unscheduled)) if unscheduled else ""


def _words(state: Raw) -> str:
    return gate.cut(": ".join(filter(None, (state.get("reason"), state.get("message")))))
