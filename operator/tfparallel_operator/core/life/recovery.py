"""Decides what to do about lost replicas, and about deadlines that count as losses."""

import dataclasses
import datetime

from tfparallel_operator.api import job_status, names, policies
from tfparallel_operator.core import decision, pod_ends, remedies
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import (
    completion,
    counts,
    deadlines,
    ending,
    failed_nodes,
    failure,
    in_place,
    restart_policy,
    restarts,
    slowness,
)
from tfparallel_operator.core.status import replica_records
from tfparallel_operator.core.view import View


@dataclasses.dataclass(frozen=True, slots=True)
class Continuation:
    """How a job continues if no loss restarts or ends it."""

    status: job_status.JobStatus
    view: View
    events: tuple[decision.JobEvent, ...] = ()
    wake_at: datetime.datetime | None = None
    settling: str = ""
    """The loss that may turn out to be the consequence of another one; empty: none."""


def answer_losses(context: DecisionContext) -> decision.Decision | Continuation:
    """Restart or end a job that has lost replicas, or say how it continues."""
    status, view = context.status, context.view
    reclassified = restarts.reclassify_as_disruption(status, view)
    if reclassified is not status:
        status = failed_nodes.count(context, reclassified, filter(pod_ends.is_taken, view.stale))
    deadline = deadlines.active(context.job, status)
    losses = failure.losses(view, slowness.count_restarts(status, context.now))
    released, release_at = failed_nodes.release(context, status)
    if released is not None and not losses:
        return released
    overdue, next_overdue = deadlines.overdue(context, status)
    events: list[decision.JobEvent] = []
    for loss in losses or filter(None, (overdue,)):
        action = restart_policy.find_action(context.layout, status, loss)
        final = action.outcome is restart_policy.LossAction.FAIL
        settles_at = failure.settles_at(loss, view, context.settings.settling, final=final)
        if settles_at is not None and settles_at > context.now:
            wake_at = deadlines.earliest(settles_at, deadline)
            settling = (
                f"{loss.describe(context.job.metadata.name)}; the operator waits until"
                f" {settles_at:%H:%M:%SZ} for an earlier loss that explains this one"
            )
            return Continuation(status, view, tuple(events), wake_at, settling)
        advice = remedies.Advice(action.message, action.remedy)
        is_ignored = action.outcome is restart_policy.LossAction.IGNORE
        if loss.cause is policies.Cause.STALL and not is_ignored:
            kind = names.ConditionType.TRAINING_STALLED
            status = context.stamp.set(status, kind, True, action.reason, advice)
        match action.outcome:
            case restart_policy.LossAction.FAIL:
                decided = ending.fail(context, status, action.reason, advice)
                return _record(context, decided, loss)
            case restart_policy.LossAction.RESTART:
                decided = _restart(context, status, loss, losses, action)
                return _record(context, decided, loss)
            case restart_policy.LossAction.IGNORE:
                status = replica_records.ignore(status, loss.replica)
                message = f"{action.message}; training continues without it"
                event = decision.warning(action.reason, message)
                pod = loss.replica.pod_name(context.job.metadata.name)
                events.append(dataclasses.replace(event, pod=pod))
    if events:
        view = context.view_of(status)
    wake_at = deadlines.earliest(deadline, next_overdue, release_at)
    return Continuation(status, view, tuple(events), wake_at)


def _restart(
    context: DecisionContext,
    status: job_status.JobStatus,
    loss: failure.Loss,
    losses: tuple[failure.Loss, ...],
    action: restart_policy.LossResponse,
) -> decision.Decision:
    """Write a restart ahead, and delete the pods that restart."""
    pause = restarts.pause(context, status, loss)
    since_progress = slowness.count_restarts(status, context.now)
    reason, message = action.reason, action.message
    if pause:
        message = f"{message}, after {pause.total_seconds():.0f} s"
    advice = remedies.Advice(message, action.remedy)
    view = context.view_of(status)
    status = counts.count(status, view)
    status = failed_nodes.count(context, status, view.current.values())
    status = status.model_copy(update={"restarts_since_progress": since_progress})
    status = restarts.restart(context.layout, status, loss, losses, context.now + pause)
    view = context.view_of(status)
    status = counts.count(status, view)
    recorded = status.model_copy(update={"failure": loss.record(context.job.metadata.name)})
    pods = in_place.plan(context, recorded, view)
    status = context.stamp.set(status, names.ConditionType.RESTARTING, True, reason, advice)
    if not completion.running(view):
        status = context.stamp.set(status, names.ConditionType.RUNNING, False, reason, advice)
    return decision.Decision(
        status,
        events=(decision.warning(reason, advice.message, action.event_action),),
        deletions=ending.delete_pods(pods.leaving),
        wake_at=deadlines.earliest(
            status.attempt_time, pods.look_again_at, deadlines.active(context.job, status)
        ),
    )


def _record(
    context: DecisionContext, decided: decision.Decision, loss: failure.Loss
) -> decision.Decision:
    """Return a decision whose status and Events name the lost replica."""
    recorded = loss.record(context.job.metadata.name)
    hang = loss.record_hang(context.job.metadata.name) or decided.status.hang
    return dataclasses.replace(
        decided,
        status=decided.status.model_copy(update={"failure": recorded, "hang": hang}),
        events=tuple(dataclasses.replace(event, pod=recorded.replica) for event in decided.events),
    )
