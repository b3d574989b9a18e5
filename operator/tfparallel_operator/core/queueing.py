"""Jobs in a queue of Kueue: pods run only while the Workload of their job is admitted. Pure.

A job that is not admitted rests like a suspended one: what was running is deleted, its quota is
given back when the last pod is gone, and the next admission begins a new attempt. Restarts of the
job's own keep the admission. An eviction counts as a disruption: the cluster took the pods.
"""

import collections

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import (
    build,
    conditions,
    counts,
    decision,
    observation,
    replicas,
    restarts,
    situation,
    view,
    workload,
)

_ADMITTED = names.Condition.ADMITTED
_REFUSED = names.Condition.CREATION_REFUSED

_OVER_WHILE_WAITING = (
    names.Condition.RUNNING,
    names.Condition.RESTARTING,
    names.Condition.TRAINING_STALLED,
)


def queued(
    job: types.TFParallelJob, children: observation.Children, settings: build.Settings
) -> bool:
    """Whether a job runs when its queue says so.

    One that holds quota stays in its queue when the label goes, until it is suspended.
    """
    if not settings.queues:
        return False
    if job.metadata.labels.get(names.LABEL_QUEUE):
        return True
    found = workload.find(job, children.workloads)
    return found is not None and workload.holds(found, "QuotaReserved")


def admitted(case: situation.Case) -> bool:
    """Whether a job that is in a queue may run."""
    return workload.admits(case.job, workload.find(case.job, case.children.workloads))


def with_admission(case: situation.Case, status: job_status.JobStatus) -> job_status.JobStatus:
    """Say of a job that begins who lets it; of one in no queue nothing."""
    found = workload.find(case.job, case.children.workloads)
    if found is None or not queued(case.job, case.children, case.settings):
        return conditions.without(status, _ADMITTED)
    message = f"admitted by ClusterQueue {found.cluster_queue}"
    return case.condition(status, _ADMITTED, True, names.Reason.JOB_ADMITTED, message)


def wait(case: situation.Case, status: job_status.JobStatus, *, begun: bool) -> decision.Decision:
    """Say what to write for a job that may not run now.

    Args:
        case: what the decision is made on.
        status: the job's status so far.
        begun: whether an attempt goes on that has to be ended.
    """
    found = workload.find(case.job, case.children.workloads)
    evicted = found is not None and workload.evicted(found)
    reason = names.Reason.JOB_EVICTED if evicted else names.Reason.JOB_QUEUED
    message = _sentence(case, found)
    was_admitted = conditions.holds(status, _ADMITTED)
    if begun and was_admitted and not _resized(case, found):
        status = restarts.disrupted(status)
    told = was_admitted or conditions.find(status, _ADMITTED) is None
    status = _resting(case, status, reason, message)
    if found is not None and conditions.holds(status, _REFUSED):
        created = names.Reason.REPLICAS_CREATED
        status = case.condition(status, _REFUSED, False, created, "the Workload was created")
    status = counts.count(status, case.sight(status))
    event = case.normal(reason, message)
    return decision.Decision(
        case.observed(status),
        events=(event,) if told else (),
        deletions=(*case.forsaken(), *_deletions(case, found)),
        changes=_changes(case, found),
        creations=_creations(case, found),
    )


def leftovers(case: situation.Case) -> tuple[decision.Deletion, ...]:
    """Delete the Workload of a job that is in no queue any more."""
    if queued(case.job, case.children, case.settings):
        return ()
    return tuple(map(workload.deletion, case.children.workloads))


def removals(case: situation.Case) -> tuple[decision.Deletion, ...]:
    """Delete the Workload of a job that its user has suspended, when no pod uses its quota."""
    if case.children.pods:
        return ()
    return tuple(
        workload.deletion(found) for found in case.children.workloads if not found.deleting
    )


def end(case: situation.Case, status: job_status.JobStatus) -> tuple[decision.Change, ...]:
    """Say that the job has ended, when none of its pods has a device any more."""
    found = workload.find(case.job, case.children.workloads)
    if found is None or found.deleting or workload.holds(found, "Finished"):
        return ()
    if any(pod.lingers or not pod.phase.ended for pod in case.children.pods):
        return ()
    succeeded = conditions.find(status, names.Condition.SUCCEEDED)
    told = succeeded or conditions.find(status, names.Condition.FAILED)
    message = "the job has ended" if told is None else told.message
    return (workload.finished(found, succeeded is not None, message, case.now),)


def progress(case: situation.Case, sight: view.View) -> tuple[decision.Change, ...]:
    """Tell Kueue whether all replicas of a job that runs are up, and which use no quota."""
    found = workload.find(case.job, case.children.workloads)
    if found is None or not workload.holds(found, "Admitted"):
        return ()
    up = (observation.Phase.RUNNING, observation.Phase.SUCCEEDED)
    needed = (replica for replica in sight.wanted if replica not in sight.ignored)
    ready = all(sight.phase(replica) in up for replica in needed)
    ended = _ended(sight) if not replicas.is_gang(case.job) else {}
    change = workload.progress(found, ready, ended, case.now)
    return () if change is None else (change,)


def _ended(sight: view.View) -> dict[str, int]:
    """Count the replicas that run no more in this attempt and use nothing, by role.

    A gang runs all its replicas again after a loss, so none of them gives quota back.
    """
    pods = {replica: sight.current.get(replica) for replica in sight.completed | sight.ignored}
    return collections.Counter(
        replica.role.label
        for replica, pod in pods.items()
        if pod is None or (pod.phase.ended and not pod.lingers)
    )


def place(case: situation.Case, pods: list[decision.Manifest]) -> None:
    """Have pods run where the job was admitted, in place."""
    found = workload.find(case.job, case.children.workloads)
    if found is not None and queued(case.job, case.children, case.settings):
        for pod in pods:
            workload.place(pod, found, case.children.flavors)


def _resting(
    case: situation.Case, status: job_status.JobStatus, reason: names.Reason, message: str
) -> job_status.JobStatus:
    """Return the status of a job that waits: whatever it did before is over."""
    status = conditions.without(status, names.Condition.FAILED)
    for kind in _OVER_WHILE_WAITING:
        if conditions.holds(status, kind):
            status = case.condition(status, kind, False, reason, message)
    if conditions.holds(status, names.Condition.SUSPENDED):
        resumed, why = names.Reason.JOB_RESUMED, "spec.runPolicy.suspend is false"
        status = case.condition(status, names.Condition.SUSPENDED, False, resumed, why)
    return case.condition(status, _ADMITTED, False, reason, message)


def _sentence(case: situation.Case, found: observation.Workload | None) -> str:
    """Say what a job waits for, in Kueue's words where it has said something."""
    queue = case.job.metadata.labels.get(names.LABEL_QUEUE) or (found and found.queue)
    if found is None or found.deleting:
        return f"queue {queue}: the job has no Workload yet"
    if not workload.fits(case.job, found):
        return f"queue {queue}: the job asks for other pods or another place than it queued for"
    return f"queue {queue}: {workload.words(found)}"


def _resized(case: situation.Case, found: observation.Workload | None) -> bool:
    """Whether it is the job itself that no longer asks for what it was admitted with."""
    return found is not None and not found.deleting and not workload.fits(case.job, found)


def _deletions(
    case: situation.Case, found: observation.Workload | None
) -> tuple[decision.Deletion, ...]:
    if found is None or not _resized(case, found) or case.children.pods:
        return ()
    return (workload.deletion(found),)


def _changes(
    case: situation.Case, found: observation.Workload | None
) -> tuple[decision.Change, ...]:
    if found is None or found.deleting or case.children.pods or _resized(case, found):
        return ()
    if not workload.holds(found, "Evicted") or not workload.holds(found, "QuotaReserved"):
        return ()
    return (workload.given_back(found, case.now),)


def _creations(
    case: situation.Case, found: observation.Workload | None
) -> tuple[decision.Manifest, ...]:
    if found is not None or case.children.pods:
        return ()
    return (workload.manifest(case.job, case.settings),)
