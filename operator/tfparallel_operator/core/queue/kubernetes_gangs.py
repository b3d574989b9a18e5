"""Gangs of Kubernetes' own scheduler: alpha in 1.36, beta from 1.37. Pure.

A group is fixed: Kubernetes 1.36 lets nothing of it change, and 1.37 the minCount alone. So each
attempt has its own group. If an edit needs another spec before the attempt has pods, the operator
deletes the group and creates it again. A replica that restarts alone does not join: either the
other members are scheduled already, or all restart.
"""

from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import names
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.queue import gang_plugin
from tfparallel_operator.core.view import View


class KubernetesGangs:
    """Gangs of the scheduler that pods have by default."""

    api_versions = ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2")
    policy_fields = gang_plugin.COMMON_POLICY_FIELDS
    can_resize = False

    def group_name(self, job_name: str, attempt: str) -> str:
        """Return a name for each attempt."""
        return f"{job_name}-{attempt}"

    def build_spec(self, view: View) -> gang_plugin.GroupSpec:
        """Return the spec. The scheduler needs the same priority on the group and its pods."""
        policy = gang_plugin.scheduling_policy(view)
        pod_spec = next(iter(view.layout.specs.values())).pod_spec
        count = gang_plugin.min_members(view, len(view.layout.all_replicas))
        return {
            "schedulingPolicy": {"gang": {"minCount": count}},
            "priorityClassName": pod_spec.get("priorityClassName", policy.priority_class) or None,
        }

    def plan_update(
        self, group: observation.Group, spec: gang_plugin.GroupSpec, *, has_pods: bool
    ) -> decision.GroupWrites:
        """Replace a group that differs, unless pods name it already."""
        if has_pods or _matches(group, spec):
            return decision.GroupWrites()
        return decision.GroupWrites(deletions=(gang_plugin.delete_group(group),), pods_wait=True)

    def join(self, pod: decision.Manifest, group_name: str, gangs: installation.Gangs) -> None:
        """Name the group, if the pod is one of the attempt's first."""
        if pod["metadata"]["labels"][names.LABEL_REPLICA_ATTEMPT] == "0":
            pod["spec"]["schedulingGroup"] = {"podGroupName": group_name}


def _matches(group: observation.Group, spec: gang_plugin.GroupSpec) -> bool:
    """Whether a group has a spec. The API server may fill in a priority class."""
    priority = spec["priorityClassName"]
    has_priority = priority in (None, group.spec.get("priorityClassName"))
    return has_priority and _min_count(group.spec) == _min_count(spec)


def _min_count(spec: Mapping[str, Any]) -> Any:
    return ((spec.get("schedulingPolicy") or {}).get("gang") or {}).get("minCount")
