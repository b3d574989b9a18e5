"""Workers that come and go: how many are in force, and when the number in the spec takes over."""

import datetime

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import completion, conditions, observation, replicas, restarts, view

_WORKER = types.Role.WORKER


def workers(job: types.TFParallelJob) -> int | None:
    """Return how many workers a job has; None when it has the role not at all."""
    spec = job.spec.tf_replica_specs.get(_WORKER)
    return None if spec is None else spec.replicas


def selector(job: types.TFParallelJob) -> str:
    """Return the labels of the workers' pods, as a selector."""
    if _WORKER not in job.spec.tf_replica_specs:
        return ""
    return f"{names.LABEL_JOB}={job.metadata.name},{names.LABEL_ROLE}={_WORKER.label}"


def in_force(job: types.TFParallelJob, pods: tuple[observation.Pod, ...]) -> types.TFParallelJob:
    """Return the job with the workers that its attempt was begun with.

    Until it has a pod an attempt may still begin with those that the spec asks for. So does one
    that follows a suspension, or an admission.
    """
    waits = conditions.denied(job.status, names.Condition.ADMITTED)
    if waits or conditions.holds(job.status, names.Condition.SUSPENDED):
        return job
    begun = any(counts.seen for counts in job.status.replicas.values()) or any(
        pod.attempt == job.status.attempt for pod in pods
    )
    if not begun or job.status.workers is None:
        return job
    return with_workers(job, job.status.workers)


def with_workers(job: types.TFParallelJob, count: int) -> types.TFParallelJob:
    """Return the job with another number of workers."""
    specs = dict(job.spec.tf_replica_specs)
    specs[_WORKER] = specs[_WORKER].model_copy(update={"replicas": count})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"tf_replica_specs": specs})})


def due(
    job: types.TFParallelJob, status: job_status.JobStatus, sight: view.View
) -> datetime.datetime | None:
    """Return when workers may be scaled; None: at once, because nothing trains that would lose."""
    if status.attempt_time is None or not completion.running(job, sight):
        return None
    pause = datetime.timedelta(seconds=job.spec.run_policy.scale_cooldown_seconds)
    return status.attempt_time + pause


def scaled(
    job: types.TFParallelJob,
    status: job_status.JobStatus,
    wanted: int,
    now: datetime.datetime,
) -> job_status.JobStatus:
    """Return the status that writes ahead that the job has other workers from now on.

    Replicas that need each other begin a new attempt. Of parameter servers and their workers the
    chief alone runs again: it fixes the number of workers when it starts.
    """
    if replicas.is_gang(job):
        # No loss has led to this attempt: none turns out to be a disruption by its old pods.
        changes = {"workers": wanted, "last_cause": ""}
        return restarts.next_attempt(status, now).model_copy(update=changes)
    again = {replicas.coordinator(job)}
    again |= {replicas.Replica(_WORKER, index) for index in range(wanted, workers(job) or 0)}
    attempts = dict(status.replica_attempts)
    for replica in again:
        attempts[replica.name] = attempts.get(replica.name, 0) + 1
    changed = restarts.forgotten(status, again)
    return changed.model_copy(
        update={"workers": wanted, "replica_attempts": attempts, "attempt_time": now}
    )
