"""A job in memory among troubles: refused pods, dead nodes, other versions of the operator."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from testing.operator import agent_world, edits
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.status import conditions

NEWER = {"mood": "sunny"}
"""A field that only a newer operator knows."""

_NEWER_CONDITION = "Checkpointed"
_UNKNOWN_BEFORE = (names.ConditionType.SPEC_INVALID, names.ConditionType.TRAINING_STALLED)
"""Conditions that an older operator does not know."""

_FIELDS_UNKNOWN_BEFORE = ("last_cause", "in_place", "replica_pods_since", "node_losses")


@dataclasses.dataclass
class TroubledWorld(agent_world.AgentWorld):
    """One job and its children; what troubles them is set by the test."""

    manifest: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The job with its newest spec that can be used."""
    refusal: observation.Refusal | None = None
    """What the API server answers to the creation of a pod."""
    unreachable: set[str] = dataclasses.field(default_factory=set)
    """Uids of pods whose node is dead."""

    def step(
        self, *, writes: int | None = None, refusal: observation.Refusal | None = None
    ) -> bool:
        """Decide and carry it out as the engine does: what is refused is decided on again."""
        outcome = self.decide(refusal)
        others = tuple(creation for creation in outcome.creations if creation["kind"] != "Pod")
        if self.refusal is None or len(others) == len(outcome.creations):
            return self.carry_out(outcome, writes)
        changed = self.carry_out(dataclasses.replace(outcome, creations=others), writes)
        return self.carry_out(self.decide(self.refusal), writes) or changed

    def step_of_older_operator(self) -> None:
        """Decide without the parts of the status that an older operator does not know."""
        status = self.status
        unknown = [
            condition for condition in status.conditions if condition.type in _UNKNOWN_BEFORE
        ]
        shared = [condition for condition in status.conditions if condition not in unknown]
        reduced = conditions.with_conditions(status, shared)
        defaults = job_status.JobStatus()
        reduced = reduced.model_copy(
            update={field: getattr(defaults, field) for field in _FIELDS_UNKNOWN_BEFORE}
        )
        self.job = self.job.model_copy(update={"status": reduced})
        pods, reports = self.pods, self.reports
        self.pods = {name: dataclasses.replace(pod, agent="") for name, pod in pods.items()}
        self.reports = {}
        outcome = self.decide()
        self.pods, self.reports = pods, reports
        kept = conditions.with_conditions(outcome.status, (*outcome.status.conditions, *unknown))
        kept = kept.model_copy(
            update={field: getattr(status, field) for field in _FIELDS_UNKNOWN_BEFORE}
        )
        self.job = self.job.model_copy(update={"status": status})
        self.carry_out(dataclasses.replace(outcome, status=kept))

    def write_of_newer_operator(self) -> None:
        """Write a field and a condition that this version does not know."""
        condition = job_status.Condition(
            type=_NEWER_CONDITION,
            status=job_status.Truth.TRUE,
            reason="Saved",
            last_transition_time=self.now,
        )
        others = (
            condition for condition in self.status.conditions if condition.type != _NEWER_CONDITION
        )
        status = conditions.with_conditions(self.status, (*others, condition))
        self.job = self.job.model_copy(update={"status": status.model_copy(update=NEWER)})

    @property
    def keeps_what_is_newer(self) -> bool:
        """Whether the status has what the newer operator has written."""
        types = [condition.type for condition in self.status.conditions]
        return self.status.model_extra == NEWER and _NEWER_CONDITION in types

    def lose_node(self, name: str) -> None:
        """Have the node of a pod die: its pods are deleted, and nobody ends them."""
        self.unreachable.add(self.pods[name].uid)
        self.update(name, deleting=True, disrupted=True, delete_by=self.now, node="dead")

    def reap(self) -> None:
        """Let the pods go that are being deleted, where their node lives."""
        self.pods = {
            name: pod
            for name, pod in self.pods.items()
            if not pod.deleting or pod.uid in self.unreachable
        }

    def edit_field(self, path: edits.Path, value: Any) -> None:
        """Edit a field as a person does; what the API server refuses changes nothing."""
        self._apply(edits.edited(self.manifest, path, value))

    def correct(self) -> None:
        """Apply the newest spec that could be used, as a new generation."""
        self._apply(self.manifest)

    def _apply(self, manifest: dict[str, Any]) -> None:
        after = {**manifest, "metadata": {**manifest["metadata"], "generation": 1}}
        generation = 1 + max(self.job.metadata.generation, self._generation_of_problem)
        if edits.refusal(self.manifest, after):
            return
        try:
            job = edits.parse(after)
        except load.SpecError as error:
            self.problem = observation.SpecProblem(str(error), generation)
            return
        self.problem = None
        self.manifest = after
        metadata = job.metadata.model_copy(update={"generation": generation})
        self.job = job.model_copy(update={"status": self.status, "metadata": metadata})

    @property
    def _generation_of_problem(self) -> int:
        return 0 if self.problem is None else self.problem.generation

    def _wait_for_the_attempt(self) -> bool:
        """Leave the clock alone: the test sees how long an attempt waits."""
        return False

    def _create(self, created: decision.Manifest) -> None:
        """Create an object; a pod in a queue asks for what its job was admitted with."""
        super()._create(created)
        pod_set = created["metadata"]["labels"].get(names.LABEL_POD_SET)
        if pod_set is not None:
            workload = next(
                created_object
                for created_object in reversed(self.manifests)
                if created_object["kind"] == "Workload"
            )
            [asked] = [entry for entry in workload["spec"]["podSets"] if entry["name"] == pod_set]
            assert _resources(created) == _resources(asked["template"])

    def _carry_out(self, action: Any) -> None:
        forced = isinstance(action, decision.Deletion) and action.force_from is not None
        if forced and action.name in self.pods:
            assert self.pods.pop(action.name).uid in self.unreachable
            self.writes += 1
        elif not forced:
            super()._carry_out(action)


def _resources(pod: Mapping[str, Any]) -> list[Any]:
    """Return what each container asks for, as the API server fills it in."""
    asked = [container.get("resources") or {} for container in pod["spec"]["containers"]]
    return [
        {
            **container_resources,
            "requests": {
                **container_resources.get("limits", {}),
                **container_resources.get("requests", {}),
            },
        }
        for container_resources in asked
    ]
