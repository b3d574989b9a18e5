"""Gangs of Volcano. Pure.

A job has one PodGroup as long as it trains. Pods name it in an annotation.
"""

from tfparallel_operator.core import decision, installation
from tfparallel_operator.core.queue import gang_plugin
from tfparallel_operator.core.view import View

POD_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
"""The annotation of a pod with the name of its PodGroup."""

SCHEDULER_NAME = "volcano"

_DEFAULT_QUEUE = "default"
"""Volcano's own queue, where TFJob puts jobs that name none."""


class Volcano(gang_plugin.LastingGroups):
    """Volcano, which has its own scheduler, with queues."""

    api_versions = ("scheduling.volcano.sh/v1beta1",)
    policy_fields = gang_plugin.COMMON_POLICY_FIELDS | {"minResources", "queue"}

    def build_spec(self, view: View) -> gang_plugin.GroupSpec:
        """Return the spec, with the queue and the priority."""
        policy = gang_plugin.scheduling_policy(view)
        return {
            "minMember": gang_plugin.min_active_members(view),
            "minResources": policy.min_resources,
            "priorityClassName": policy.priority_class,
            "queue": policy.queue or _DEFAULT_QUEUE,
        }

    def join(self, pod: decision.Manifest, group_name: str, gangs: installation.Gangs) -> None:
        """Annotate the pod, and choose its scheduler."""
        pod["metadata"]["annotations"][POD_GROUP_ANNOTATION] = group_name
        pod["spec"].setdefault("schedulerName", SCHEDULER_NAME)
