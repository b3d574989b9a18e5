"""The interface of gang schedulers: their PodGroups, and how pods become members. Pure.

A scheduler is a module of this folder and a row in `gang.PLUGINS`. Nothing else depends on which
schedulers exist.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from tfparallel_operator.api import types
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.view import View

GroupSpec = Mapping[str, Any]
"""The fields of a PodGroup's spec that a job sets, as JSON; None: the job leaves it out."""

COMMON_POLICY_FIELDS = frozenset({"minAvailable", "priorityClass"})
"""The fields of runPolicy.schedulingPolicy that every scheduler knows."""


class GangPlugin(Protocol):
    """A gang scheduler."""

    @property
    def api_versions(self) -> tuple[str, ...]:
        """Equivalent versions of its PodGroups, newest first."""

    @property
    def policy_fields(self) -> frozenset[str]:
        """The fields of runPolicy.schedulingPolicy that it knows, by their names in a manifest."""

    @property
    def can_resize(self) -> bool:
        """Whether the number of a group's members may change while they run."""

    def group_name(self, job_name: str, attempt: str) -> str:
        """Return the name of the PodGroup of an attempt."""

    def build_spec(self, view: View) -> GroupSpec:
        """Return what a job needs of its PodGroup."""

    def plan_update(
        self, group: observation.Group, spec: GroupSpec, *, has_pods: bool
    ) -> decision.GroupWrites:
        """Plan the writes that give a PodGroup a spec; `has_pods`: the attempt has pods."""

    def join(self, pod: decision.Manifest, group_name: str, gangs: installation.Gangs) -> None:
        """Make a pod's manifest a member, in place. What its template sets has priority."""


class LastingGroups:
    """PodGroups that may change while pods run: a job has one as long as it trains."""

    can_resize = True

    def group_name(self, job_name: str, attempt: str) -> str:
        """Return the name of the job, whose attempts share the group."""
        return job_name

    def plan_update(
        self, group: observation.Group, spec: GroupSpec, *, has_pods: bool
    ) -> decision.GroupWrites:
        """Patch the fields that differ, also while the group's pods run."""
        fields = {key: value for key, value in spec.items() if group.spec.get(key) != value}
        kind = (group.api_version, "PodGroup")
        change = decision.Change(kind, group.name, group.uid, {"spec": fields})
        return decision.GroupWrites(changes=(change,) if fields else ())


def group_type(plugin: GangPlugin) -> decision.ObjectType:
    """Return the type of a scheduler's PodGroups."""
    return plugin.api_versions[0], "PodGroup"


def scheduling_policy(view: View) -> types.SchedulingPolicy:
    """Return runPolicy.schedulingPolicy, with its defaults if the job has none."""
    return view.layout.job.spec.run_policy.scheduling_policy or types.SchedulingPolicy()


def min_members(view: View, members: int) -> int:
    """Return how many of the members must start together."""
    return max(1, min(scheduling_policy(view).min_available or members, members))


def min_active_members(view: View) -> int:
    """Return the same without replicas that have completed or that training does without."""
    return min_members(view, len(set(view.layout.all_replicas) - view.completed - view.ignored))


def delete_group(group: observation.Group) -> decision.Deletion:
    """Delete a PodGroup."""
    return decision.Deletion(group.name, group.uid, (group.api_version, "PodGroup"))
