"""Counts replicas for the status, whose size does not depend on their number."""

import datetime
from collections.abc import Sequence
from typing import Any

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import observation, pending_reasons, replicas
from tfparallel_operator.core.pods import avoided_nodes
from tfparallel_operator.core.status import conditions, replica_records
from tfparallel_operator.core.view import View
from tfparallel_trainer.contract import exits, plain_text

REASON_BYTES = 256
"""Most bytes of a kubelet's reason."""

_UNKNOWN_TIME = datetime.datetime.min.replace(tzinfo=datetime.UTC)


def count(status: job_status.JobStatus, view: View, *, ended: bool = False) -> job_status.JobStatus:
    """Return the status with the counts of the view.

    If the job has ended, replicas without pods no longer count as pending. Failures stay on record,
    and so does the number of replicas that were ready when the job succeeded.
    """
    status = _record(status, view)
    by_role = dict(status.replicas)
    for role, desired in view.layout.counts.items():
        pods = [pod for replica, pod in view.current.items() if replica.role is role]
        phases = [phase for replica, phase in view.phases.items() if replica.role is role]
        if ended:
            phases = [pod.phase for pod in pods]
        before = by_role[role.value]
        succeeded = sum(replica.role is role for replica in view.completed)
        counts: dict[str, Any] = {"desired": desired, "succeeded": succeeded}
        counts |= _count_role(pods, phases, before, ended=ended)
        pending_pod = None if ended else _find_waiting(pods)
        counts["reason"] = "" if pending_pod is None else _describe_waiting(pending_pod)
        counts["waiting"] = None if pending_pod is None else _record_waiting(status, pending_pod)
        by_role[role.value] = before.model_copy(update=counts)
    up = sum(counts.running + counts.succeeded for counts in by_role.values())
    ready = f"{up}/{len(view.layout.all_replicas)}"
    if ended and status.ready and not conditions.is_true(status, names.ConditionType.FAILED):
        ready = status.ready
    return status.model_copy(update={"replicas": by_role, "ready": ready})


def _record(status: job_status.JobStatus, view: View) -> job_status.JobStatus:
    """Return the status with the view's additions to the fields that persist."""
    completed, ignored = replicas.group(view.completed), replicas.group(view.ignored)
    seen_indices = replicas.group(view.seen | view.current.keys())
    for role in view.layout.counts:
        indices = {
            "completed": completed[role],
            "seen": seen_indices[role],
            "ignored": ignored[role],
        }
        status = replica_records.write(status, role, **indices)
    return status


def _count_role(
    pods: Sequence[observation.Pod],
    phases: Sequence[observation.Phase],
    before: job_status.ReplicaStatus,
    *,
    ended: bool,
) -> dict[str, Any]:
    failed = phases.count(observation.Phase.FAILED)
    return {
        "pending": phases.count(observation.Phase.PENDING),
        "running": phases.count(observation.Phase.RUNNING),
        "failed": max(failed, before.failed) if ended else failed,
        "terminating": sum(pod.deleting and not pod.phase.ended for pod in pods),
        "last_exit": _last_exit(pods) or before.last_exit,
    }


def _find_waiting(pods: Sequence[observation.Pod]) -> observation.Pod | None:
    """Return the pod whose reason explains best why replicas wait."""
    pending = (pod for pod in pods if pod.phase is observation.Phase.PENDING and pod.waiting)
    return min(pending, key=lambda pod: pending_reasons.weigh(pod.waiting, pod.node), default=None)


def _describe_waiting(pod: observation.Pod) -> str:
    return plain_text.shorten(f"{pod.name}: {pod.waiting}", conditions.MESSAGE_BYTES)


def _record_waiting(status: job_status.JobStatus, pod: observation.Pod) -> job_status.Waiting:
    remedy = avoided_nodes.find_remedy(status, pod.waiting)
    return job_status.Waiting(
        pod=pod.name,
        reason=plain_text.shorten(pod.waiting, conditions.PROBLEM_BYTES),
        remedy=plain_text.shorten(remedy, conditions.REMEDY_BYTES),
    )


def _last_exit(pods: Sequence[observation.Pod]) -> job_status.LastExit | None:
    ended = [
        (pod.exit.finished_at or _UNKNOWN_TIME, pod.name, pod, pod.exit)
        for pod in pods
        if pod.phase is observation.Phase.FAILED and pod.exit is not None
    ]
    if not ended:
        return None
    _, name, pod, last = max(ended, key=lambda entry: entry[:2])
    return job_status.LastExit(
        replica=name,
        code=last.code,
        reason=plain_text.shorten(
            pod.reason or last.reason or exits.describe(last.code), REASON_BYTES
        ),
        time=last.finished_at,
    )
