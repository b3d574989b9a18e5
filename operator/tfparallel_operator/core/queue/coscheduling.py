"""Gangs of Coscheduling, the plugin of the scheduler-plugins. Pure.

A job has one PodGroup as long as it trains. Pods name it in a label.
"""

from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.queue import gang_plugin
from tfparallel_operator.core.view import View

POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""Names the PodGroup of a pod."""


class Coscheduling:
    """Has a scheduler of its own, whose name the installation sets."""

    api_versions = ("scheduling.x-k8s.io/v1alpha1",)
    policy_fields = gang_plugin.COMMON_POLICY_FIELDS | {"minResources", "scheduleTimeoutSeconds"}
    can_resize = True

    def group_name(self, job_name: str, attempt: str) -> str:
        """Return the name of the job, whose attempts share the group."""
        return job_name

    def build_spec(self, view: View) -> gang_plugin.GroupSpec:
        """Return the spec. The priority is that of the pods."""
        policy = gang_plugin.scheduling_policy(view)
        return {
            "minMember": gang_plugin.min_active_members(view),
            "minResources": policy.min_resources,
            "scheduleTimeoutSeconds": policy.schedule_timeout_seconds,
        }

    def plan_update(
        self, group: observation.Group, spec: gang_plugin.GroupSpec, *, has_pods: bool
    ) -> decision.GroupWrites:
        """Patch the group, which may change while its pods run."""
        return gang_plugin.plan_patch(self, group, spec)

    def join(self, pod: decision.Manifest, group_name: str, gangs: installation.Gangs) -> None:
        """Label the pod, and choose its scheduler."""
        pod["metadata"]["labels"][POD_GROUP_LABEL] = group_name
        pod["spec"].setdefault("schedulerName", gangs.coscheduling_name)
