"""Gangs: the pods of a job start together or not at all, where a scheduler knows how. Pure.

A PodGroup says how many pods belong together; each pod names its group. The group of Coscheduling
and of Volcano is the job's, lives as long as the job trains, and follows the number of its members:
those that have completed, or that training goes on without, are not waited for.

A group of Kubernetes is fixed, so each attempt has its own. If an edit asks for another one before
the attempt has a pod, the group is made again. A replica that runs again alone is not part of it:
the others have their places already, or else all of them run again.
"""

from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import names, types
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import ownership
from tfparallel_operator.core.view import View

_TYPES: Mapping[types.GangScheduler, decision.ObjectType] = {
    types.GangScheduler.COSCHEDULING: ("scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    types.GangScheduler.VOLCANO: ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    types.GangScheduler.KUBERNETES: ("scheduling.k8s.io/v1beta1", "PodGroup"),
}

_CHANGEABLE = (types.GangScheduler.COSCHEDULING, types.GangScheduler.VOLCANO)

_MEANT_FOR = {
    "queue": (types.GangScheduler.VOLCANO,),
    "minResources": _CHANGEABLE,
    "scheduleTimeoutSeconds": (types.GangScheduler.COSCHEDULING,),
}
"""The fields of a scheduling policy that not every scheduler knows."""

_NO_QUEUE_GIVEN = "default"
"""Volcano's own queue, where TFJob puts jobs that name none."""


def scheduler(
    job: types.TFParallelJob, gangs: installation.Gangs | None
) -> types.GangScheduler | None:
    """Return who starts a job's pods together; None: nobody has to, or nobody could."""
    if gangs is None:
        return None
    scheduling = job.spec.scheduling
    if scheduling is not None and scheduling.gang is not None:
        return scheduling.gang
    return None if job.spec.run_policy.scheduling_policy is None else gangs.scheduler


def is_name(name: str, job_name: str) -> bool:
    """Whether a PodGroup has the name of a job's group, or of that of one of its attempts."""
    beginning, _, attempt = name.rpartition("-")
    return name == job_name or (beginning == job_name and attempt.isdecimal())


def problem(layout: Layout, gangs: installation.Gangs | None) -> str | None:
    """Say why a job's gang cannot be what it asks for, and what to do; None when it can."""
    job = layout.job
    chosen = scheduler(job, gangs)
    scales_in_place = layout.is_elastic and not layout.is_gang
    if chosen is types.GangScheduler.KUBERNETES and scales_in_place:
        return (
            "scheduling.gang is Kubernetes, whose groups are fixed, and the workers of these"
            " servers come and go: remove minReplicas and maxReplicas, or set scheduling.gang to"
            f" {_any_of(_CHANGEABLE)}"
        )
    policy = job.spec.run_policy.scheduling_policy
    if policy is None or gangs is None:
        return None
    if chosen is None:
        return (
            "runPolicy.schedulingPolicy is given and there is no gang scheduler: set"
            f" scheduling.gang to {_any_of(types.GangScheduler)}, or start the operator with"
            " --gang-scheduler"
        )
    for field, value in policy.model_dump(by_alias=True, exclude_none=True).items():
        fitting = _MEANT_FOR.get(field, (chosen,))
        if chosen not in fitting:
            return (
                f"runPolicy.schedulingPolicy.{field} is {value!r}, which the gang scheduler"
                f" {chosen} does not know: remove it, or set scheduling.gang to {_any_of(fitting)}"
            )
    count = len(layout.all_replicas)
    if (policy.min_available or 0) > count and not layout.is_elastic:
        return (
            f"runPolicy.schedulingPolicy.minAvailable is {policy.min_available}, and the job has"
            f" {count} replicas: it would wait forever; set it to {count} or less"
        )
    return None


def join(
    pod: decision.Manifest, job: types.TFParallelJob, gangs: installation.Gangs | None
) -> None:
    """Make a pod's manifest part of the job's gang, in place; what its template says wins."""
    chosen = scheduler(job, gangs)
    if chosen is None or gangs is None:
        return
    spec, metadata = pod["spec"], pod["metadata"]
    group = _name(job, chosen, metadata["labels"][names.LABEL_ATTEMPT])
    match chosen:
        case types.GangScheduler.COSCHEDULING:
            metadata["labels"][names.LABEL_POD_GROUP] = group
            spec.setdefault("schedulerName", gangs.coscheduling_name)
        case types.GangScheduler.VOLCANO:
            metadata["annotations"][names.ANNOTATION_POD_GROUP] = group
            spec.setdefault("schedulerName", names.VOLCANO)
        case types.GangScheduler.KUBERNETES:
            if metadata["labels"][names.LABEL_REPLICA_ATTEMPT] == "0":
                spec["schedulingGroup"] = {"podGroupName": group}
    policy = job.spec.run_policy.scheduling_policy
    if policy is not None and policy.priority_class is not None:
        spec.setdefault("priorityClassName", policy.priority_class)


def steps(context: DecisionContext, view: View, attempt: int) -> decision.Steps:
    """Say what to write of a job's group, so that it has the one that it needs, and no other."""
    job, groups = context.job, context.children.groups
    chosen = scheduler(job, context.settings.gangs)
    if chosen is None:
        # If the job trains, the installation no longer has a scheduler: pods that wait still name
        # their group.
        return decision.Steps()
    api_version, kind = _TYPES[chosen]
    name = _name(job, chosen, str(attempt))
    spec = _spec(view, chosen)
    group = next((g for g in groups if (g.api_version, g.name) == (api_version, name)), None)
    others = removals(tuple(other for other in groups if other is not group))
    if group is None:
        metadata = ownership.metadata(job, name)
        manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
        return decision.Steps((manifest,), deletions=others)
    if chosen is types.GangScheduler.KUBERNETES:
        has_pods = any(pod.attempt == attempt for pod in (*view.current.values(), *view.stale))
        if has_pods or _is_right(group, spec):
            return decision.Steps(deletions=others)
        return decision.Steps(deletions=removals(groups), pods_wait=True)
    fields = {key: spec.get(key) for key in _FIELDS[chosen] if group.spec.get(key) != spec.get(key)}
    change = decision.Change(_TYPES[chosen], name, group.uid, {"spec": fields})
    return decision.Steps(changes=(change,) if fields else (), deletions=others)


def removals(groups: tuple[observation.Group, ...]) -> tuple[decision.Deletion, ...]:
    """Delete groups: those of a job that does not train hold places for nobody."""
    return tuple(
        decision.Deletion(group.name, group.uid, (group.api_version, "PodGroup"))
        for group in groups
    )


_FIELDS: Mapping[types.GangScheduler, tuple[str, ...]] = {
    types.GangScheduler.COSCHEDULING: ("minMember", "minResources", "scheduleTimeoutSeconds"),
    types.GangScheduler.VOLCANO: ("minMember", "minResources", "priorityClassName", "queue"),
    types.GangScheduler.KUBERNETES: ("schedulingPolicy", "priorityClassName"),
}
"""What a group's spec takes from the job, and follows. Kubernetes changes no group of 1.36, and of
a group of 1.37 the minCount alone."""


def _spec(view: View, chosen: types.GangScheduler) -> dict[str, Any]:
    every = view.layout.all_replicas
    policy = view.layout.job.spec.run_policy.scheduling_policy or types.SchedulingPolicy()
    if chosen is types.GangScheduler.KUBERNETES:
        # The scheduler places no group whose priority differs from that of its pods.
        first = next(iter(view.layout.specs.values())).pod_spec
        fields: dict[str, Any] = {
            "schedulingPolicy": {"gang": {"minCount": _least(policy, len(every))}},
            "priorityClassName": first.get("priorityClassName", policy.priority_class) or None,
        }
    else:
        needed = set(every) - view.completed - view.ignored
        fields = {
            "minMember": _least(policy, len(needed)),
            "minResources": policy.min_resources,
            "scheduleTimeoutSeconds": policy.schedule_timeout_seconds,
            "queue": policy.queue or _NO_QUEUE_GIVEN,
            "priorityClassName": policy.priority_class,
        }
    return {key: fields[key] for key in _FIELDS[chosen] if fields.get(key) is not None}


def _is_right(group: observation.Group, spec: Mapping[str, Any]) -> bool:
    """Whether a group of Kubernetes asks for this; its API server fills in a priority class."""
    policies = [one.get("schedulingPolicy") or {} for one in (group.spec, spec)]
    before, after = ((policy.get("gang") or {}).get("minCount") for policy in policies)
    name = spec.get("priorityClassName")
    return before == after and name in (None, group.spec.get("priorityClassName"))


def _least(policy: types.SchedulingPolicy, members: int) -> int:
    return max(1, min(policy.min_available or members, members))


def _name(job: types.TFParallelJob, chosen: types.GangScheduler, attempt: str) -> str:
    name = job.metadata.name
    return f"{name}-{attempt}" if chosen is types.GangScheduler.KUBERNETES else name


def _any_of(schedulers: Any) -> str:
    return " or ".join(one.value for one in schedulers)
