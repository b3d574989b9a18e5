"""Deadlines of a job, counted from times in its status, so that they outlive the operator."""

import datetime

from tfparallel_operator.api import job_status, names, policies, types
from tfparallel_operator.core import observation, pending_reasons, replicas
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import completion, failure, slowness
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View


def earliest(*times: datetime.datetime | None) -> datetime.datetime | None:
    """Return the earliest of the times that are not None."""
    return min((time for time in times if time is not None), default=None)


def active(job: types.TFParallelJob, status: job_status.JobStatus) -> datetime.datetime | None:
    """Return when activeDeadlineSeconds ends, counted from the job's start or resumption."""
    return _after(status.start_time, job.spec.run_policy.active_deadline_seconds)


def pending(job: types.TFParallelJob, status: job_status.JobStatus) -> datetime.datetime | None:
    """Return when pendingDeadlineSeconds ends, counted from the beginning of the attempt."""
    return _after(status.attempt_time, job.spec.run_policy.pending_deadline_seconds)


def overdue(
    context: DecisionContext, status: job_status.JobStatus
) -> tuple[failure.Loss | None, datetime.datetime | None]:
    """Return the loss that a deadline causes, or when it will cause one.

    Until training runs, its pods may be pending for too long. While it runs, it may report too
    rarely.
    """
    view, policy = context.view, context.job.spec.run_policy
    if completion.running(view):
        since = slowness.find_report_time(status)
        if since is not None:  # An operator that was away has missed reports.
            since = max(since, context.settings.listening_since or since)
        at, find_loss = _after(since, policy.stall_deadline_seconds), _find_stall
    else:
        at = pending(context.job, status) if _list_waiting(view) else None
        find_loss = _find_pending
    if at is None or at > context.now:
        return None, at
    return find_loss(view, status), None


def _find_pending(view: View, status: job_status.JobStatus) -> failure.Loss:
    """Return the loss of pods that have waited for too long.

    It names the pod whose reason explains most.
    """
    pending = _list_waiting(view)
    pods = [view.current[replica] for replica in pending if replica in view.current]
    pod = min(pods, key=lambda pod: pending_reasons.weigh(pod.waiting, pod.node), default=None)
    refused = conditions.find_true(status, names.ConditionType.CREATION_REFUSED)
    first, why = pending[0], ""
    if refused is not None:
        why = f": {conditions.read_problem(refused)}"
    elif pod and pod.waiting:
        first, why = pod.replica, f": {pod.waiting}"
    seconds = view.layout.job.spec.run_policy.pending_deadline_seconds
    sentence = f"does not run {seconds} s after it should (runPolicy.pendingDeadlineSeconds){why}"
    cause, of_gang = policies.Cause.PENDING_TOO_LONG, view.is_waiting_gang
    return failure.Loss(first, cause, None, sentence, of_waiting_gang=of_gang)


def _find_stall(view: View, status: job_status.JobStatus) -> failure.Loss:
    step = 0 if status.progress is None else status.progress.step
    seconds = view.layout.job.spec.run_policy.stall_deadline_seconds
    sentence = (
        f"has reported no progress after step {step} for {seconds} s"
        " (runPolicy.stallDeadlineSeconds)"
    )
    return failure.Loss(view.layout.coordinator, policies.Cause.STALL, None, sentence)


def _list_waiting(view: View) -> list[replicas.Replica]:
    """Return the training replicas that do not run yet."""
    return [
        replica
        for replica in view.layout.training
        if view.phases[replica] is observation.Phase.PENDING
    ]


def _after(time: datetime.datetime | None, seconds: int | None) -> datetime.datetime | None:
    if time is None or seconds is None:
        return None
    return time + datetime.timedelta(seconds=seconds)
