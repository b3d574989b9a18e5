"""Gangs of Coscheduling, the plugin of the scheduler-plugins. Pure.

A job has one PodGroup as long as it trains. Pods name it in a label.
"""

from tfparallel_operator.core import decision, installation
from tfparallel_operator.core.queue import gang_plugin
from tfparallel_operator.core.view import View

POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""The label of a pod with the name of its PodGroup."""


class Coscheduling(gang_plugin.LastingGroups):
    """The plugin Coscheduling, whose scheduler has a name that the installation sets."""

    api_versions = ("scheduling.x-k8s.io/v1alpha1",)
    policy_fields = gang_plugin.COMMON_POLICY_FIELDS | {"minResources", "scheduleTimeoutSeconds"}

    def build_spec(self, view: View) -> gang_plugin.GroupSpec:
        """Return the spec. The priority is that of the pods."""
        policy = gang_plugin.scheduling_policy(view)
        return {
            "minMember": gang_plugin.min_active_members(view),
            "minResources": policy.min_resources,
            "scheduleTimeoutSeconds": policy.schedule_timeout_seconds,
        }

    def join(self, pod: decision.Manifest, group_name: str, gangs: installation.Gangs) -> None:
        """Label the pod, and choose its scheduler."""
        pod["metadata"]["labels"][POD_GROUP_LABEL] = group_name
        pod["spec"].setdefault("schedulerName", gangs.coscheduling_name)
