"""The replicas in numbers, bounded in size however many there are."""

import collections
import datetime
from collections.abc import Sequence

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import indices, observation, remedies, replicas, view
from tfparallel_trainer.contract import exits

_UNKNOWN_TIME = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def count(
    status: job_status.JobStatus, view: view.View, *, ended: bool = False
) -> job_status.JobStatus:
    """Return the status with the numbers of the view.

    If the job has ended, replicas whose pods are gone no longer wait for anything, failures stay on
    record, and so does how many were ready.
    """
    members: dict[types.Role, list[replicas.Replica]] = {role: [] for role in view.layout.counts}
    for replica in view.layout.all_replicas:
        members[replica.role].append(replica)
    by_role = dict(status.replicas)
    for role, of_role in members.items():
        before = status.replicas.get(role.value) or job_status.ReplicaStatus()
        by_role[role.value] = _count_role(of_role, view, before, ended=ended)
    up = sum(counts.running + counts.succeeded for counts in by_role.values())
    ready = f"{up}/{len(view.layout.all_replicas)}"
    if ended and status.ready:
        ready = status.ready
    return status.model_copy(update={"replicas": by_role, "ready": ready})


def _count_role(
    members: list[replicas.Replica],
    view: view.View,
    before: job_status.ReplicaStatus,
    *,
    ended: bool,
) -> job_status.ReplicaStatus:
    pods = [view.current[member] for member in members if member in view.current]
    phases = collections.Counter(
        [pod.phase for pod in pods] if ended else [view.phases[member] for member in members]
    )
    completed = [member.index for member in members if member in view.completed]
    seen = [one.index for one in members if one in view.current or one in view.seen]
    ignored = [member.index for member in members if member in view.ignored]
    failed = phases[observation.Phase.FAILED]
    return before.model_copy(
        update={
            "desired": len(members),
            "pending": phases[observation.Phase.PENDING],
            "running": phases[observation.Phase.RUNNING],
            "succeeded": len(completed),
            "failed": max(failed, before.failed) if ended else failed,
            "terminating": sum(pod.deleting and not pod.phase.ended for pod in pods),
            "completed": indices.format_ranges(completed),
            "seen": indices.format_ranges(seen),
            "ignored": indices.format_ranges(ignored),
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
