"""Jobs that may not run yet, and what they wait for.

A job that its queue does not admit is treated as suspended: its pods are deleted. When the last pod
is gone, its quota is released, and the next admission begins a new attempt. If the job itself
restarts, it keeps its admission. An eviction counts as a disruption, because the cluster took the
pods.
"""

import datetime

from tfparallel_operator.api import job_status, names, policies
from tfparallel_operator.core import decision, remedies
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import (
    counts,
    deadlines,
    ending,
    obstacles,
    restarts,
    spec_validity,
)
from tfparallel_operator.core.queue import kueue, workload
from tfparallel_operator.core.status import conditions

_ADMITTED = names.ConditionType.ADMITTED
_REFUSED = names.ConditionType.CREATION_REFUSED

_OVER_WHILE_WAITING = (
    names.ConditionType.RUNNING,
    names.ConditionType.RESTARTING,
    names.ConditionType.TRAINING_STALLED,
)

LOOK_FOR_PERMISSION = datetime.timedelta(seconds=30)
"""How often to check whether a Secret has got the label that it needs."""


def fail_if_refused(context: DecisionContext) -> decision.Decision | None:
    """Fail a job if the API server permanently rejects one of its objects."""
    refusal = context.environment.refusal
    if refusal is None or not refusal.final or _was_accepted(context.status, refusal.role):
        return None
    return ending.fail(context, context.status, refusal.reason, refusal.message)


def _was_accepted(status: job_status.JobStatus, role: str) -> bool:
    """Whether the API server has accepted pods of a role before. Then the cluster may have changed.

    If the operator failed such a job, its training would be lost, although a correction could let
    the job continue.
    """
    was_suspended = conditions.find(status, names.ConditionType.SUSPENDED) is not None
    has_resumed = status.attempt > 1 and was_suspended
    carried = (
        of_role.seen for name, of_role in status.replicas.items() if role in ("", name.lower())
    )
    has_trained = bool(status.restart_causes) or status.progress is not None
    return has_trained or has_resumed or any(carried)


def fail_if_unstartable(context: DecisionContext) -> decision.Decision | None:
    """Fail a job that this installation cannot start."""
    problem = spec_validity.find_problem(
        context.layout, context.settings, is_gang_scheduled=conditions.has_begun(context.status)
    )
    if problem is None:
        return None
    return ending.fail(context, context.status, names.Reason.INVALID_SPEC, problem)


def wait_for_permission(context: DecisionContext) -> decision.Decision | None:
    """Let a job wait if the installation does not allow what it uses.

    A job that has begun continues.
    """
    if not context.environment.restriction or conditions.has_begun(context.status):
        return None
    if context.children.pods:  # They precede the first status.
        return None
    # Nothing runs, so ports of nodes that were found for it are not taken.
    status = context.status.model_copy(update={"host_ports": context.job.status.host_ports})
    status, events = refuse_new_pods(context, status)
    return decision.Decision(status, events=events, wake_at=context.now + LOOK_FOR_PERMISSION)


def refuse_new_pods(
    context: DecisionContext, status: job_status.JobStatus
) -> tuple[job_status.JobStatus, tuple[decision.JobEvent, ...]]:
    """Say why the installation does not allow new pods for the job."""
    reason, message = names.Reason.JOB_RESTRICTED, context.environment.restriction
    before = conditions.find_true(status, _REFUSED)
    status = context.stamp.set(status, _REFUSED, True, reason, message)
    is_news = before is None or (before.reason, before.message) != (reason, message)
    return status, (decision.warning(reason, message),) if is_news else ()


def wait_for_creation(context: DecisionContext) -> decision.Decision | None:
    """Say why pods cannot be created now. The operator tries again, and nothing else changes."""
    refusal, status = context.environment.refusal, context.status
    if refusal is None:
        return None
    wake_at = deadlines.active(context.job, status)
    status, events = obstacles.refuse(context, status, refusal)
    return decision.Decision(status, events, wake_at=wake_at)


def wait_for_quota(context: DecisionContext) -> decision.Decision | None:
    """Stop a job that its queue does not admit, and say what it waits for."""
    if not kueue.is_queued(context) or kueue.is_admitted(context):
        return None
    status, existing = context.status, kueue.find(context)
    evicted = existing is not None and workload.is_evicted(existing)
    reason = names.Reason.JOB_EVICTED if evicted else names.Reason.JOB_QUEUED
    explanation = remedies.explain(kueue.waiting_message(context))
    message = explanation.message
    was_admitted = conditions.is_true(status, _ADMITTED)
    is_news = was_admitted or conditions.find(status, _ADMITTED) is None
    fits = existing is None or existing.deleting or workload.matches_job(context.layout, existing)
    # Else it is the job itself that no longer asks for what it was admitted with.
    if conditions.has_begun(status) and was_admitted and fits:
        status = restarts.count(status, policies.Cause.DISRUPTION)
    status = conditions.remove(status, names.ConditionType.FAILED)
    status = context.stamp.clear(status, _OVER_WHILE_WAITING, reason, message)
    resumed, why = names.Reason.JOB_RESUMED, "spec.runPolicy.suspend is false"
    status = context.stamp.clear(status, [names.ConditionType.SUSPENDED], resumed, why)
    status = context.stamp.set(status, _ADMITTED, False, reason, explanation)
    if existing is not None:
        created = names.Reason.REPLICAS_CREATED
        status = context.stamp.clear(status, [_REFUSED], created, "the Workload was created")
    status, steps = counts.count(status, context.view_of(status)), kueue.requeue(context)
    return decision.Decision(
        status,
        events=(decision.normal(reason, message),) if is_news else (),
        deletions=(*ending.delete_all_children(context), *steps.deletions),
        changes=steps.changes,
        creations=steps.creations,
    )
