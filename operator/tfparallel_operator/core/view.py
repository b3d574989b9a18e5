"""Sorts the pods of a job by their role in the current attempt. Pure."""

import dataclasses
import functools

from tfparallel_operator.api import job_status
from tfparallel_operator.core import observation, pod_ends, replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.status import replica_records

_UP = (observation.Phase.RUNNING, observation.Phase.SUCCEEDED)


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """The replicas of a job and their pods."""

    layout: Layout
    current: dict[replicas.Replica, observation.Pod]
    """The pods of this attempt."""
    stale: tuple[observation.Pod, ...]
    """Pods of earlier attempts, which must be deleted before their names are used again."""
    completed: frozenset[replicas.Replica]
    """Replicas that ended with success, whether or not their pods still exist."""
    ignored: frozenset[replicas.Replica]
    """Lost replicas without which training continues."""
    seen: frozenset[replicas.Replica]
    """Replicas whose pod of this attempt was observed before, as the last status says."""

    @functools.cached_property
    def missing(self) -> tuple[replicas.Replica, ...]:
        """Replicas that have to run, but have no pod of this attempt."""
        present = {*self.current, *self.completed, *self.ignored}
        return tuple(replica for replica in self.layout.all_replicas if replica not in present)

    @functools.cached_property
    def vanished(self) -> tuple[replicas.Replica, ...]:
        """Replicas whose pod was observed and is gone.

        The operator does not recreate the pod in this attempt, because its side effects are
        unknown.
        """
        return tuple(replica for replica in self.missing if replica in self.seen)

    @property
    def dismissed(self) -> tuple[observation.Pod, ...]:
        """Pods that have not ended, of lost replicas without which training continues."""
        pods = (self.current.get(replica) for replica in self.ignored)
        return tuple(pod for pod in pods if pod is not None and not pod.phase.ended)

    @functools.cached_property
    def phases(self) -> dict[replicas.Replica, observation.Phase]:
        """The phase of each replica.

        A completed replica stays completed, and one without a pod is pending.
        """
        pending = dict.fromkeys(self.layout.all_replicas, observation.Phase.PENDING)
        return (
            pending
            | {replica: pod.phase for replica, pod in self.current.items()}
            | dict.fromkeys(self.ignored, observation.Phase.FAILED)
            | dict.fromkeys(self.completed, observation.Phase.SUCCEEDED)
        )

    @functools.cached_property
    def is_waiting_gang(self) -> bool:
        """Whether the pods of a gang wait to be scheduled, so that none of them starts alone."""
        spec, pods = self.layout.job.spec, self.current.values()
        is_gang = spec.scheduling is not None and spec.scheduling.gang is not None
        has_places = any(pod.node or pod.phase is not observation.Phase.PENDING for pod in pods)
        has_run = has_places or bool(self.completed) or bool(self.ignored)
        return (is_gang or spec.run_policy.scheduling_policy is not None) and not has_run

    def is_up(self, replica: replicas.Replica) -> bool:
        """Whether a replica runs or has completed."""
        return self.phases[replica] in _UP


def build(layout: Layout, status: job_status.JobStatus, pods: tuple[observation.Pod, ...]) -> View:
    """Sort the pods of a job by the attempt in its status."""
    current: dict[replicas.Replica, observation.Pod] = {}
    stale = []
    for pod in pods:
        is_member = pod.replica.index < layout.counts.get(pod.replica.role, 0)
        if is_member and is_current(pod, status):
            current[pod.replica] = _without_false_success(layout, pod)
        else:
            stale.append(pod)
    carried = {role: replica_records.read(status, role) for role in layout.counts}
    completed, ignored, seen = (
        layout.select({role: getattr(record, field) for role, record in carried.items()})
        for field in ("completed", "ignored", "seen")
    )
    succeeded = observation.Phase.SUCCEEDED
    completed |= {replica for replica, pod in current.items() if pod.phase is succeeded}
    return View(layout, current, tuple(stale), completed, ignored, seen)


def _without_false_success(layout: Layout, pod: observation.Pod) -> observation.Pod:
    """Return a pod as failed if something ended it, and its program exited with 0.

    Only for the shipped trainer, 0 means that training is complete. If it is asked to end, it exits
    with 76.
    """
    succeeded = pod.phase is observation.Phase.SUCCEEDED
    if not succeeded or layout.job.spec.trainer is not None or not pod_ends.find(pod).of_pod:
        return pod
    return dataclasses.replace(pod, phase=observation.Phase.FAILED)


def is_of_attempt(pod: observation.Pod, status: job_status.JobStatus) -> bool:
    """Whether a pod belongs to the job's attempt: it was created for it, or has stayed for it."""
    is_new = pod.attempt == status.attempt
    return pod.attempt in status.pod_attempts and (is_new or _may_have_stayed(pod))


def is_current(pod: observation.Pod, status: job_status.JobStatus) -> bool:
    """Whether a pod belongs to the job's attempt, and to its replica's attempt within it."""
    if not is_of_attempt(pod, status):
        return False
    latest = status.replica_attempts.get(pod.replica.name, 0) if status.replica_attempts else 0
    since = status.replica_pods_since.get(pod.replica.name, latest)
    is_new = pod.replica_attempt == latest
    return is_new or (since <= pod.replica_attempt < latest and _may_have_stayed(pod))


def _may_have_stayed(pod: observation.Pod) -> bool:
    """Whether a pod of an earlier run may train in the latest one.

    A pod that has stayed has run. One that still waits to run was created late, by an operator that
    has since died.
    """
    return pod.phase is not observation.Phase.PENDING
