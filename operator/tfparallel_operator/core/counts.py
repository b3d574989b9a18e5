"""The replicas in numbers, bounded in size however many there are."""

import datetime
from collections.abc import Sequence

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import indices, observation, remedies, view
from tfparallel_trainer.contract import exits

_UNKNOWN_TIME = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def count(
    status: job_status.JobStatus,
    sight: view.View,
    *,
    ended: bool = False,
) -> job_status.JobStatus:
    """Return the status with the numbers of the view.

    When the job has ended, replicas whose pods are gone wait for nothing any more, failures stay
    on record, and so does how many were ready.
    """
    by_role = dict(status.replicas)
    for role in dict.fromkeys(replica.role for replica in sight.wanted):
        before = status.replicas.get(role.value) or job_status.ReplicaStatus()
        by_role[role.value] = _count_role(role, sight, before, ended=ended)
    up = sum(counts.running + counts.succeeded for counts in by_role.values())
    ready = status.ready if ended and status.ready else f"{up}/{len(sight.wanted)}"
    return status.model_copy(update={"replicas": by_role, "ready": ready})


def _count_role(
    role: types.Role, sight: view.View, before: job_status.ReplicaStatus, *, ended: bool
) -> job_status.ReplicaStatus:
    members = [replica for replica in sight.wanted if replica.role is role]
    pods = [sight.current[member] for member in members if member in sight.current]
    phases = [pod.phase for pod in pods] if ended else [sight.phase(m) for m in members]
    completed = [member.index for member in members if member in sight.completed]
    seen = [m.index for m in members if m in sight.current or m in sight.seen]
    failed = phases.count(observation.Phase.FAILED)
    return before.model_copy(
        update={
            "desired": len(members),
            "pending": phases.count(observation.Phase.PENDING),
            "running": phases.count(observation.Phase.RUNNING),
            "succeeded": len(completed),
            "failed": max(failed, before.failed) if ended else failed,
            "terminating": sum(pod.deleting and not pod.phase.ended for pod in pods),
            "completed": indices.format_ranges(completed),
            "seen": indices.format_ranges(seen),
            "ignored": indices.format_ranges(m.index for m in members if m in sight.ignored),
            "reason": "" if ended else _waiting(pods),
            "last_exit": _last_exit(pods) or before.last_exit,
        }
    )


def _waiting(pods: Sequence[observation.Pod]) -> str:
    waiting = [pod for pod in pods if pod.phase is observation.Phase.PENDING and pod.waiting]
    if not waiting:
        return ""
    cause = min(waiting, key=lambda pod: remedies.is_held_by_others(pod.waiting))
    return f"{cause.name}: {cause.waiting}"


def _last_exit(pods: Sequence[observation.Pod]) -> job_status.LastExit | None:
    exits_seen = [
        (pod.exit.finished_at or _UNKNOWN_TIME, pod.name, pod.exit)
        for pod in pods
        if pod.phase is observation.Phase.FAILED and pod.exit is not None
    ]
    if not exits_seen:
        return None
    _, name, last = max(exits_seen, key=lambda seen: seen[:2])
    return job_status.LastExit(
        replica=name,
        code=last.code,
        reason=last.reason or exits.describe(last.code),
        time=last.finished_at,
    )
