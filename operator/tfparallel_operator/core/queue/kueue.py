"""A job and its Workload: who may run, what is written of it, and where its pods go. Pure."""

import collections
from collections.abc import Iterable

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.queue import workload
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View


def find(context: DecisionContext) -> observation.Workload | None:
    """Return the Workload of the job, if there is one."""
    name = workload.name(context.job.metadata.name)
    return next(
        (existing for existing in context.children.workloads if existing.name == name), None
    )


def is_queued(context: DecisionContext) -> bool:
    """Whether a job runs when its queue says so.

    One that holds quota stays in its queue when the label goes, until it is suspended.
    """
    if not context.settings.queues:
        return False
    if context.job.metadata.labels.get(names.LABEL_QUEUE):
        return True
    existing = find(context)
    return existing is not None and workload.is_true(existing, "QuotaReserved")


def is_admitted(context: DecisionContext) -> bool:
    """Whether a job that is in a queue may run."""
    existing = find(context)
    return (
        existing is not None
        and workload.matches_job(context.layout, existing)
        and not workload.is_evicted(existing)
        and workload.is_true(existing, "Admitted")
    )


def waiting_message(context: DecisionContext) -> str:
    """Say what a job waits for, in Kueue's words where it has said something."""
    existing = find(context)
    queue = context.job.metadata.labels.get(names.LABEL_QUEUE) or (existing and existing.queue)
    if existing is None or existing.deleting:
        return f"queue {queue}: the job has no Workload yet"
    if not workload.matches_job(context.layout, existing):
        return f"queue {queue}: the job asks for other pods or another place than it queued for"
    return f"queue {queue}: {workload.waiting_reason(existing)}"


def with_admission(context: DecisionContext, status: job_status.JobStatus) -> job_status.JobStatus:
    """Return the status with who lets a job run; a job in no queue has no such condition."""
    existing = find(context)
    if existing is None or not is_queued(context):
        return conditions.without(status, names.Condition.ADMITTED)
    reason = names.Reason.JOB_ADMITTED
    message = f"admitted by ClusterQueue {existing.cluster_queue}"
    return context.stamp.set(status, names.Condition.ADMITTED, True, reason, message)


def requeue(context: DecisionContext) -> decision.GroupWrites:
    """Have a job that waits queue for what it asks for, once none of its pods uses quota."""
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
    """Delete the Workload of a job that its user has suspended, once no pod uses its quota."""
    return () if context.children.pods else workload.deletions(context.children.workloads)


def finish(context: DecisionContext, status: job_status.JobStatus) -> tuple[decision.Change, ...]:
    """Say that the job has ended, once none of its pods has a device."""
    existing = find(context)
    if existing is None or existing.deleting or workload.is_true(existing, "Finished"):
        return ()
    if any(pod.lingers or not pod.phase.ended for pod in context.children.pods):
        return ()
    succeeded = conditions.find(status, names.Condition.SUCCEEDED)
    outcome = succeeded or conditions.find(status, names.Condition.FAILED)
    message = "the job has ended" if outcome is None else outcome.message
    return (workload.finished(existing, succeeded is not None, message, context.now),)


def progress(context: DecisionContext, view: View) -> tuple[decision.Change, ...]:
    """Tell Kueue whether all replicas of a job that runs are up, and which use no quota."""
    existing = find(context)
    if existing is None or not workload.is_true(existing, "Admitted"):
        return ()
    needed = (replica for replica in view.layout.all_replicas if replica not in view.ignored)
    ready = all(map(view.is_up, needed))
    idle = {} if view.layout.is_gang else _count_idle(view)
    return workload.progress(existing, ready, idle, context.now)


def apply_admission(context: DecisionContext, pods: Iterable[decision.Manifest]) -> None:
    """Have pods run where the job was admitted, in place."""
    existing = find(context)
    if existing is not None and is_queued(context):
        for pod in pods:
            workload.apply_admission(pod, existing, context.environment.flavors)


def _count_idle(view: View) -> dict[str, int]:
    """Count the replicas that have ended in this attempt and use nothing, by role.

    A gang runs all its replicas again after a loss, so none of them gives quota back.
    """
    pods = {replica: view.current.get(replica) for replica in view.completed | view.ignored}
    return collections.Counter(
        replica.role.label
        for replica, pod in pods.items()
        if pod is None or (pod.phase.ended and not pod.lingers)
    )
