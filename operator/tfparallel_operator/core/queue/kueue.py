"""A job in a queue of Kueue: its admission, its Workload, and the placement of its pods. Pure."""

import collections
from collections.abc import Iterable

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.queue import workload
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View


def find(context: DecisionContext) -> observation.Workload | None:
    """Return the Workload of the job; None: it has none."""
    name = workload.name(context.job.metadata.name)
    return next(
        (existing for existing in context.children.workloads if existing.name == name), None
    )


def is_queued(context: DecisionContext) -> bool:
    """Whether a queue decides when the job runs.

    If somebody removes the label of a job that has quota, the job stays in its queue until it is
    suspended.
    """
    if not context.settings.queues:
        return False
    if context.job.metadata.labels.get(names.LABEL_QUEUE):
        return True
    existing = find(context)
    return existing is not None and workload.is_true(existing, "QuotaReserved")


def is_admitted(context: DecisionContext) -> bool:
    """Whether Kueue has admitted the job."""
    existing = find(context)
    return (
        existing is not None
        and workload.matches_job(context.layout, existing)
        and not workload.is_evicted(existing)
        and workload.is_true(existing, "Admitted")
    )


def waiting_message(context: DecisionContext) -> str:
    """Say what a job waits for, with Kueue's reason if it gives one."""
    existing = find(context)
    queue = context.job.metadata.labels.get(names.LABEL_QUEUE) or (existing and existing.queue)
    if existing is None or existing.deleting:
        return f"queue {queue}: the job has no Workload yet"
    if not workload.matches_job(context.layout, existing):
        return f"queue {queue}: the job asks for other pods or another place than it queued for"
    return f"queue {queue}: {workload.waiting_reason(existing)}"


def with_admission(context: DecisionContext, status: job_status.JobStatus) -> job_status.JobStatus:
    """Return the status with the condition Admitted; without it for a job in no queue."""
    existing = find(context)
    if existing is None or not is_queued(context):
        return conditions.remove(status, names.ConditionType.ADMITTED)
    reason = names.Reason.JOB_ADMITTED
    message = f"admitted by ClusterQueue {existing.cluster_queue}"
    return context.stamp.set(status, names.ConditionType.ADMITTED, True, reason, message)


def requeue(context: DecisionContext) -> decision.GroupWrites:
    """Create or replace the Workload of a pending job, once none of its pods uses quota."""
    existing = find(context)
    if context.children.pods or (existing is not None and existing.deleting):
        return decision.GroupWrites()
    if existing is None:
        return decision.GroupWrites((workload.manifest(context.layout, context.settings),))
    if not workload.matches_job(context.layout, existing):
        return decision.GroupWrites(deletions=workload.deletions((existing,)))
    if workload.is_true(existing, "Evicted") and workload.is_true(existing, "QuotaReserved"):
        return decision.GroupWrites(changes=(workload.release_quota(existing, context.now),))
    return decision.GroupWrites()


def leftovers(context: DecisionContext) -> tuple[decision.Deletion, ...]:
    """Delete the Workload of a job that has left its queue."""
    return () if is_queued(context) else workload.deletions(context.children.workloads)


def removals(context: DecisionContext) -> tuple[decision.Deletion, ...]:
    """Delete the Workload of a suspended job, once no pod uses its quota."""
    return () if context.children.pods else workload.deletions(context.children.workloads)


def finish(context: DecisionContext, status: job_status.JobStatus) -> tuple[decision.Change, ...]:
    """Mark the Workload as finished, once none of its pods has a device."""
    existing = find(context)
    if existing is None or existing.deleting or workload.is_true(existing, "Finished"):
        return ()
    if any(pod.lingers or not pod.phase.ended for pod in context.children.pods):
        return ()
    succeeded = conditions.find(status, names.ConditionType.SUCCEEDED)
    outcome = succeeded or conditions.find(status, names.ConditionType.FAILED)
    message = "the job has ended" if outcome is None else outcome.message
    return (workload.finished(existing, succeeded is not None, message, context.now),)


def progress(context: DecisionContext, view: View) -> tuple[decision.Change, ...]:
    """Report to Kueue whether all replicas run, and how many use no quota."""
    existing = find(context)
    if existing is None or not workload.is_true(existing, "Admitted"):
        return ()
    needed = (replica for replica in view.layout.all_replicas if replica not in view.ignored)
    ready = all(map(view.is_up, needed))
    idle = {} if view.layout.is_gang else _count_idle(view)
    return workload.progress(existing, ready, idle, context.now)


def apply_admission(context: DecisionContext, pods: Iterable[decision.Manifest]) -> None:
    """Apply the job's admission to its pods, in place."""
    existing = find(context)
    if existing is not None and is_queued(context):
        for pod in pods:
            workload.apply_admission(pod, existing, context.environment.flavors)


def _count_idle(view: View) -> dict[str, int]:
    """Count the replicas that have ended in this attempt and use no quota, by role.

    A gang restarts all its replicas after a loss, so none of them releases quota.
    """
    pods = {replica: view.current.get(replica) for replica in view.completed | view.ignored}
    return collections.Counter(
        replica.role.label
        for replica, pod in pods.items()
        if pod is None or (pod.phase.ended and not pod.lingers)
    )
