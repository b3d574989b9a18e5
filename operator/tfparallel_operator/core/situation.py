"""What one decision is made on, and the ways in which decisions are put."""

import dataclasses
import datetime

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import (
    build,
    conditions,
    counts,
    decision,
    gang,
    observation,
    view,
)

PASSING = (
    names.Condition.ADMITTED,
    names.Condition.RUNNING,
    names.Condition.RESTARTING,
    names.Condition.TRAINING_STALLED,
    names.Condition.CREATION_REFUSED,
)
"""Conditions that a job which has ended, or is suspended, cannot be in."""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One decision's givens. The methods return values and keep nothing."""

    job: types.TFParallelJob
    children: observation.Children
    now: datetime.datetime
    settings: build.Settings
    wanted_workers: int | None = None
    """Workers that the spec asks for; the job has those that are in force."""

    def sight(self, status: job_status.JobStatus) -> view.View:
        """Sort the pods by the attempt in a status."""
        return view.build(self.job, status, self.children)

    def rested(
        self, status: job_status.JobStatus, reason: str, message: str
    ) -> job_status.JobStatus:
        """Return the status of a job that does nothing any more."""
        for kind in PASSING:
            if conditions.holds(status, kind):
                status = self.condition(status, kind, False, reason, message)
        return status

    def end(
        self,
        status: job_status.JobStatus,
        kind: names.Condition,
        reason: str,
        message: str,
    ) -> decision.Decision:
        """End the job; pods are cleaned up by the next decision, when the end is on record."""
        status = self.rested(status, names.Reason.JOB_FINISHED, "the job has ended")
        status = self.condition(status, kind, True, reason, message)
        status = status.model_copy(update={"completion_time": self.now})
        sight = self.sight(status)
        status = counts.count(status, sight)
        succeeded = kind is names.Condition.SUCCEEDED
        event_type = decision.EventType.NORMAL if succeeded else decision.EventType.WARNING
        return decision.Decision(
            self.observed(status),
            events=(decision.Event(event_type, reason, message),),
            wake_at=self.now,
        )

    def condition(
        self,
        status: job_status.JobStatus,
        kind: names.Condition,
        true: bool,
        reason: str,
        message: str,
    ) -> job_status.JobStatus:
        """Set a condition for the generation that is decided for."""
        return conditions.set_condition(
            status,
            kind,
            true=true,
            reason=reason,
            message=message,
            now=self.now,
            generation=self.job.metadata.generation,
        )

    def observed(self, status: job_status.JobStatus) -> job_status.JobStatus:
        """Say which generation of the spec the status describes."""
        return status.model_copy(update={"observed_generation": self.job.metadata.generation})

    def forsaken(self) -> tuple[decision.Deletion, ...]:
        """Delete all pods and groups of a job that is not to train."""
        return (*deletions(self.children.pods), *gang.removals(self.children.groups))

    def normal(self, reason: names.Reason, message: str) -> decision.Event:
        """Return an Event that nobody must act on."""
        return decision.Event(decision.EventType.NORMAL, reason, message)

    def warning(self, reason: names.Reason, message: str) -> decision.Event:
        """Return an Event that a person should look at."""
        return decision.Event(decision.EventType.WARNING, reason, message)


def deletions(pods: tuple[observation.Pod, ...]) -> tuple[decision.Deletion, ...]:
    """Delete pods that are not being deleted yet."""
    return tuple(decision.Deletion(pod.name, pod.uid) for pod in pods if not pod.deleting)
