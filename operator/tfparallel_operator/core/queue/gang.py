"""Gangs: the pods of a job start together or not at all, if a scheduler supports it. Pure.

A PodGroup says how many pods start together; each pod names its group. `PLUGINS` has the gang
schedulers, each a module of this folder.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from tfparallel_operator.api import names, types
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import ownership
from tfparallel_operator.core.queue import coscheduling, gang_plugin, kubernetes_gangs, volcano
from tfparallel_operator.core.view import View

PLUGINS: Mapping[types.GangScheduler, gang_plugin.GangPlugin] = {
    types.GangScheduler.COSCHEDULING: coscheduling.Coscheduling(),
    types.GangScheduler.VOLCANO: volcano.Volcano(),
    types.GangScheduler.KUBERNETES: kubernetes_gangs.KubernetesGangs(),
}
"""Every gang scheduler, by its name in `scheduling.gang`."""


def find_scheduler(
    job: types.TFParallelJob, gangs: installation.Gangs | None
) -> types.GangScheduler | None:
    """Return the gang scheduler of a job; None: it needs none, or none is installed."""
    if gangs is None:
        return None
    scheduling = job.spec.scheduling
    if scheduling is not None and scheduling.gang is not None:
        return scheduling.gang
    return None if job.spec.run_policy.scheduling_policy is None else gangs.scheduler


def is_group_name(name: str, job_name: str) -> bool:
    """Whether a PodGroup has a name that the operator gives for a job, or for an attempt of it."""
    beginning, _, attempt = name.rpartition("-")
    return name == job_name or (beginning == job_name and attempt.isdecimal())


def find_problem(layout: Layout, gangs: installation.Gangs | None) -> str | None:
    """Return why the scheduler of a job cannot schedule it as a gang, and what to do; None: it can.

    This is the only place of the rules about gangs that need to know the installation.
    """
    job = layout.job
    scheduler = find_scheduler(job, gangs)
    scales_in_place = layout.is_elastic and not layout.is_gang
    if scheduler is not None and scales_in_place and not PLUGINS[scheduler].can_resize:
        others = (name for name, plugin in PLUGINS.items() if plugin.can_resize)
        return (
            f"scheduling.gang is {scheduler}, whose groups are fixed, and the workers of these"
            " servers come and go: remove minReplicas and maxReplicas, or set scheduling.gang to"
            f" {_join_names(others)}"
        )
    policy = job.spec.run_policy.scheduling_policy
    if policy is None or gangs is None:
        return None
    if scheduler is None:
        return (
            "runPolicy.schedulingPolicy is given and there is no gang scheduler: set"
            f" scheduling.gang to {_join_names(PLUGINS)}, or start the operator with"
            " --gang-scheduler"
        )
    for field, value in policy.model_dump(by_alias=True, exclude_none=True).items():
        if field not in PLUGINS[scheduler].policy_fields:
            others = (name for name, plugin in PLUGINS.items() if field in plugin.policy_fields)
            return (
                f"runPolicy.schedulingPolicy.{field} is {value!r}, which the gang scheduler"
                f" {scheduler} does not know: remove it, or set scheduling.gang to"
                f" {_join_names(others)}"
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
    """Make a pod's manifest a member of the job's gang, in place. Its template has priority."""
    scheduler = find_scheduler(job, gangs)
    if scheduler is None or gangs is None:
        return
    plugin = PLUGINS[scheduler]
    attempt = pod["metadata"]["labels"][names.LABEL_ATTEMPT]
    plugin.join(pod, plugin.group_name(job.metadata.name, attempt), gangs)
    policy = job.spec.run_policy.scheduling_policy
    if policy is not None and policy.priority_class is not None:
        pod["spec"].setdefault("priorityClassName", policy.priority_class)


def plan_group_writes(context: DecisionContext, view: View, attempt: int) -> decision.GroupWrites:
    """Plan the writes after which a job has the PodGroup that it needs, and no other."""
    job, groups = context.job, context.children.groups
    scheduler = find_scheduler(job, context.settings.gangs)
    if scheduler is None:
        # The scheduler may have left the installation while the job trains. Pending pods still name
        # their group.
        return decision.GroupWrites()
    plugin = PLUGINS[scheduler]
    name, spec = plugin.group_name(job.metadata.name, str(attempt)), plugin.build_spec(view)
    api_version, kind = gang_plugin.group_type(plugin)
    group = next((g for g in groups if (g.api_version, g.name) == (api_version, name)), None)
    others = delete_groups(other for other in groups if other is not group)
    if group is None:
        manifest = {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": ownership.metadata(job, name),
            "spec": {key: value for key, value in spec.items() if value is not None},
        }
        return decision.GroupWrites((manifest,), deletions=others)
    has_pods = any(pod.attempt == attempt for pod in (*view.current.values(), *view.stale))
    writes = plugin.plan_update(group, spec, has_pods=has_pods)
    return dataclasses.replace(writes, deletions=(*writes.deletions, *others))


def delete_groups(groups: Iterable[observation.Group]) -> tuple[decision.Deletion, ...]:
    """Delete PodGroups: a job that does not train must not reserve resources."""
    return tuple(map(gang_plugin.delete_group, groups))


def _join_names(schedulers: Iterable[types.GangScheduler]) -> str:
    return " or ".join(schedulers)
