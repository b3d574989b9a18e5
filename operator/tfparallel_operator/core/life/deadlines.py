"""Deadlines of a job: all from times in its status, so that they outlive the operator."""

import datetime

from tfparallel_operator.api import job_status, policies, types
from tfparallel_operator.core import layout, observation, replicas, view
from tfparallel_operator.core.life import completion, failure, pace


def earliest(*times: datetime.datetime | None) -> datetime.datetime | None:
    """Return the first of the times that are known."""
    return min((time for time in times if time is not None), default=None)


def active(job: types.TFParallelJob, status: job_status.JobStatus) -> datetime.datetime | None:
    """Return when the job has run for too long, counted from its start or resumption."""
    return _after(status.start_time, job.spec.run_policy.active_deadline_seconds)


def pending(status: job_status.JobStatus, view: view.View) -> datetime.datetime | None:
    """Return when pods have waited for too long; None while none waits that training needs."""
    if completion.running(view) or not _waiting(view):
        return None
    return _after(status.attempt_time, view.layout.job.spec.run_policy.pending_deadline_seconds)


def stall(
    status: job_status.JobStatus, view: view.View, listening_since: datetime.datetime | None
) -> datetime.datetime | None:
    """Return when training has made no progress for too long.

    Only a job that has reported since its latest start can stall, and only while its pods run. Time
    in which nobody listened does not count: an operator that was away misses reports.
    """
    reported_at = pace.find_report_time(status)
    if reported_at is None or not completion.running(view):
        return None
    silent_since = reported_at if listening_since is None else max(reported_at, listening_since)
    return _after(silent_since, view.layout.job.spec.run_policy.stall_deadline_seconds)


def pending_loss(view: view.View) -> failure.Loss:
    """Return the loss that pods which wait for too long are: the first that says why, if any."""
    waiting = _waiting(view)
    pods = (view.current[replica] for replica in waiting if replica in view.current)
    reasons = ((pod.replica, f": {pod.waiting}") for pod in pods if pod.waiting)
    first, why = next(reasons, (waiting[0], ""))
    seconds = view.layout.job.spec.run_policy.pending_deadline_seconds
    sentence = f"does not run {seconds} s after it should (runPolicy.pendingDeadlineSeconds){why}"
    cause, waits = policies.Cause.PENDING_TOO_LONG, view.is_waiting_gang
    return failure.Loss(first, cause, None, sentence, of_waiting_gang=waits)


def stall_loss(status: job_status.JobStatus, layout: layout.Layout) -> failure.Loss:
    """Return the loss that training which has stalled is."""
    step = 0 if status.progress is None else status.progress.step
    seconds = layout.job.spec.run_policy.stall_deadline_seconds
    sentence = (
        f"has reported no progress after step {step} for {seconds} s"
        " (runPolicy.stallDeadlineSeconds)"
    )
    return failure.Loss(layout.coordinator, policies.Cause.STALL, None, sentence)


def _waiting(view: view.View) -> list[replicas.Replica]:
    """Return the replicas that train and do not run yet."""
    return [
        replica
        for replica in view.layout.training
        if view.phases[replica] is observation.Phase.PENDING
    ]


def _after(time: datetime.datetime | None, seconds: int | None) -> datetime.datetime | None:
    if time is None or seconds is None:
        return None
    return time + datetime.timedelta(seconds=seconds)
