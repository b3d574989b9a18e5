"""Pods sorted by what they mean for the attempt that runs."""

import dataclasses

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import indices, observation, replicas


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The replicas of a job and the pods that stand for them."""

    wanted: tuple[replicas.Replica, ...]
    current: dict[replicas.Replica, observation.Pod]
    """The pods of this attempt."""
    stale: tuple[observation.Pod, ...]
    """Pods of earlier attempts: to be deleted before their names are used again."""
    completed: frozenset[replicas.Replica]
    """Replicas that ended with success, whether or not their pods still exist."""
    ignored: frozenset[replicas.Replica]
    """Replicas that were lost and that training goes on without."""
    seen: frozenset[replicas.Replica]
    """Replicas whose pod of this attempt has been seen, by the status that was written."""

    @property
    def missing(self) -> tuple[replicas.Replica, ...]:
        """Replicas that have to run and have no pod of this attempt."""
        return tuple(
            replica
            for replica in self.wanted
            if replica not in self.current
            and replica not in self.completed
            and replica not in self.ignored
        )

    @property
    def vanished(self) -> tuple[replicas.Replica, ...]:
        """Replicas whose pod has been seen and is gone.

        Its name is never used again in the attempt, because nobody knows what it has done.
        """
        return tuple(replica for replica in self.missing if replica in self.seen)

    @property
    def dismissed(self) -> tuple[observation.Pod, ...]:
        """Pods of replicas that training goes on without, and that have not ended."""
        pods = (self.current.get(replica) for replica in self.ignored)
        return tuple(pod for pod in pods if pod is not None and not pod.phase.ended)

    def phase(self, replica: replicas.Replica) -> observation.Phase:
        """Where a replica is: a completed one stays so, one without a pod is pending."""
        if replica in self.completed:
            return observation.Phase.SUCCEEDED
        if replica in self.ignored:
            return observation.Phase.FAILED
        pod = self.current.get(replica)
        return observation.Phase.PENDING if pod is None else pod.phase


def build(
    job: types.TFParallelJob, status: job_status.JobStatus, children: observation.Children
) -> View:
    """Sort the pods of a job by the attempt in its status."""
    wanted = replicas.expand(job)
    current: dict[replicas.Replica, observation.Pod] = {}
    stale = []
    known = set(wanted)
    for pod in children.pods:
        if pod.replica in known and _is_current(pod, status):
            current[pod.replica] = pod
        else:
            stale.append(pod)
    completed = {
        replica for replica, pod in current.items() if pod.phase is observation.Phase.SUCCEEDED
    }
    return View(
        wanted,
        current,
        tuple(stale),
        completed=_recorded(wanted, status, "completed") | completed,
        ignored=_recorded(wanted, status, "ignored"),
        seen=_recorded(wanted, status, "seen"),
    )


def _is_current(pod: observation.Pod, status: job_status.JobStatus) -> bool:
    replica_attempt = status.replica_attempts.get(pod.replica.name, 0)
    return pod.attempt == status.attempt and pod.replica_attempt == replica_attempt


def _recorded(
    wanted: tuple[replicas.Replica, ...], status: job_status.JobStatus, field: str
) -> frozenset[replicas.Replica]:
    """Return the replicas that a field of the status names by their indices."""
    found = {role: indices.parse(getattr(one, field)) for role, one in status.replicas.items()}
    return frozenset(replica for replica in wanted if replica.index in found.get(replica.role, ()))
