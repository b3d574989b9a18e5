"""Deadlines of a job: all from times in its status, so that they outlive the operator."""

import datetime
from collections.abc import Sequence

from tfparallel_operator.api import job_status, policies, types
from tfparallel_operator.core import context, layout, observation, replicas, view, waits
from tfparallel_operator.core.life import completion, failure, pace


def earliest(*times: datetime.datetime | None) -> datetime.datetime | None:
    """Return the first of the times that are known."""
    return min((time for time in times if time is not None), default=None)


def active(job: types.TFParallelJob, status: job_status.JobStatus) -> datetime.datetime | None:
    """Return when the job has run for too long, counted from its start or resumption."""
    return _after(status.start_time, job.spec.run_policy.active_deadline_seconds)


def overdue(
    context: context.DecisionContext, status: job_status.JobStatus
) -> tuple[failure.Loss | None, datetime.datetime | None]:
    """Return the loss that a deadline has made, or when it will make one.

    Until training runs its pods may wait for too long; while it runs it may report too rarely.
    """
    view, policy = context.view, context.job.spec.run_policy
    runs = completion.running(view)
    waiting = [] if runs else _waiting(view)
    if runs:
        since = _silent_since(status, context.settings.listening_since)
        at = _after(since, policy.stall_deadline_seconds)
    else:
        at = _after(status.attempt_time if waiting else None, policy.pending_deadline_seconds)
    if at is None or at > context.now:
        return None, at
    return _stall_loss(status, view.layout) if runs else _pending_loss(view, waiting), None


def _silent_since(
    status: job_status.JobStatus, listening_since: datetime.datetime | None
) -> datetime.datetime | None:
    """Return when training reported last; None where it has not since its latest start.

    Time in which nobody listened does not count: an operator that was away misses reports.
    """
    reported_at = pace.find_report_time(status)
    return reported_at and max(reported_at, listening_since or reported_at)


def _pending_loss(view: view.View, waiting: Sequence[replicas.Replica]) -> failure.Loss:
    """Return the loss that pods which wait for too long are: the one whose words say most."""
    pods = [view.current[replica] for replica in waiting if replica in view.current]
    pod = min(pods, key=lambda pod: waits.weigh(pod.waiting, pod.node), default=None)
    first, why = (pod.replica, f": {pod.waiting}") if pod and pod.waiting else (waiting[0], "")
    seconds = view.layout.job.spec.run_policy.pending_deadline_seconds
    sentence = f"does not run {seconds} s after it should (runPolicy.pendingDeadlineSeconds){why}"
    cause, of_gang = policies.Cause.PENDING_TOO_LONG, view.is_waiting_gang
    return failure.Loss(first, cause, None, sentence, of_waiting_gang=of_gang)


def _stall_loss(status: job_status.JobStatus, layout: layout.Layout) -> failure.Loss:
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
