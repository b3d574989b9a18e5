"""A job that is to train: losses are answered, deadlines kept, missing pods made."""

import datetime

from tfparallel_operator.api import job_status, names, policies, types
from tfparallel_operator.core import (
    build,
    claims,
    cluster_spec,
    completion,
    conditions,
    counts,
    deadlines,
    decision,
    failure,
    gang,
    isolation,
    observation,
    policy,
    queueing,
    remedies,
    replicas,
    restarts,
    scaling,
    situation,
    view,
)

_REFUSED = names.Condition.CREATION_REFUSED


def train(
    case: situation.Case, status: job_status.JobStatus, events: tuple[decision.Event, ...]
) -> decision.Decision:
    """Say what to write for a job that has begun and has not ended."""
    sight = case.sight(status)
    success = completion.success(case.job, sight)
    if success is not None:
        return case.end(status, names.Condition.SUCCEEDED, *success)
    deadline = deadlines.active(case.job, status)
    if deadline is not None and deadline <= case.now:
        seconds = case.job.spec.run_policy.active_deadline_seconds
        message = f"not ended {seconds} s after its start (runPolicy.activeDeadlineSeconds)"
        reason = names.Reason.DEADLINE_EXCEEDED
        return case.end(status, names.Condition.FAILED, reason, message)
    status = restarts.reattributed(status, sight)
    losses = failure.losses(case.job, sight)
    overdue, wait_ends = _overdue(case, status, sight)
    for loss in losses or overdue:
        verdict = policy.judge(case.job, status, loss)
        final = verdict.outcome is policy.Outcome.FAIL
        settles_at = failure.settles_at(case.job, loss, sight, case.settings.settling, final=final)
        if settles_at is not None and settles_at > case.now:
            wake_at = deadlines.earliest(settles_at, deadline)
            settling = failure.describe_settling(case.job, loss, settles_at)
            return _go_on(case, status, sight, events, wake_at, settling)
        match verdict.outcome:
            case policy.Outcome.FAIL:
                status = _stalled(case, status, loss, verdict)
                message = remedies.append(verdict.message, verdict.remedy)
                return case.end(status, names.Condition.FAILED, verdict.reason, message)
            case policy.Outcome.RESTART:
                status = _stalled(case, status, loss, verdict)
                return _restart(case, status, loss, losses, verdict)
            case policy.Outcome.IGNORE:
                status = restarts.ignore(status, loss.replica)
                message = f"{verdict.message}; training goes on without it"
                events = (*events, case.warning(verdict.reason, message))
    sight = case.sight(status)
    scale_at = None
    if case.wanted_workers is not None and case.wanted_workers != status.workers:
        scale_at = scaling.due(case.job, status, sight)
        if scale_at is None or scale_at <= case.now:
            return _scale(case, status, case.wanted_workers)
    return _go_on(case, status, sight, events, deadlines.earliest(deadline, wait_ends, scale_at))


def _overdue(
    case: situation.Case, status: job_status.JobStatus, sight: view.View
) -> tuple[tuple[failure.Loss, ...], datetime.datetime | None]:
    """Return the losses that a deadline has made, and when the next one will."""
    pending = deadlines.pending(case.job, status, sight)
    if pending is not None and pending <= case.now:
        return (deadlines.pending_loss(case.job, sight),), None
    stall = deadlines.stall(case.job, status, sight, case.settings.listening_since)
    if stall is not None and stall <= case.now:
        return (deadlines.stall_loss(case.job, status),), None
    return (), deadlines.earliest(pending, stall)


def _stalled(
    case: situation.Case, status: job_status.JobStatus, loss: failure.Loss, verdict: policy.Verdict
) -> job_status.JobStatus:
    """Say in a condition that training had stalled, where that is the loss."""
    if loss.cause is not policies.Cause.STALL:
        return status
    kind = names.Condition.TRAINING_STALLED
    message = remedies.append(verdict.message, verdict.remedy)
    return case.condition(status, kind, True, verdict.reason, message)


def _restart(
    case: situation.Case,
    status: job_status.JobStatus,
    loss: failure.Loss,
    losses: tuple[failure.Loss, ...],
    verdict: policy.Verdict,
) -> decision.Decision:
    pause = restarts.pause(case.job, status, loss, case.settings.first_pause, case.now)
    reason, message = verdict.reason, verdict.message
    if pause:
        message = f"{message}, after {pause.total_seconds():.0f} s"
    message = remedies.append(message, verdict.remedy)
    before = case.sight(status)
    status = counts.count(status, before)
    status = restarts.restart(case.job, status, loss, losses, case.now + pause)
    sight = case.sight(status)
    status = counts.count(status, sight)
    status = case.condition(status, names.Condition.RESTARTING, True, reason, message)
    if not completion.running(case.job, sight):
        status = case.condition(status, names.Condition.RUNNING, False, reason, message)
    return decision.Decision(
        case.observed(status),
        events=(case.warning(reason, message),),
        deletions=situation.deletions(sight.stale),
        wake_at=deadlines.earliest(status.attempt_time, deadlines.active(case.job, status)),
    )


def _scale(case: situation.Case, status: job_status.JobStatus, wanted: int) -> decision.Decision:
    """Write ahead that the job has other workers, and delete what has to run again for it."""
    again = "all replicas run" if replicas.is_gang(case.job) else "the chief runs"
    reason = names.Reason.REPLICAS_SCALED
    message = f"workers {status.workers} to {wanted}; {again} again"
    scaled = situation.Case(
        scaling.with_workers(case.job, wanted), case.children, case.now, case.settings, wanted
    )
    status = scaling.scaled(case.job, status, wanted, case.now)
    sight = scaled.sight(status)
    status = counts.count(status, sight)
    for kind, true in ((names.Condition.RESTARTING, True), (names.Condition.RUNNING, False)):
        status = case.condition(status, kind, true, reason, message)
    return decision.Decision(
        case.observed(status),
        events=(case.normal(reason, message),),
        deletions=situation.deletions(sight.stale),
        wake_at=deadlines.active(case.job, status),
    )


def _go_on(
    case: situation.Case,
    status: job_status.JobStatus,
    sight: view.View,
    events: tuple[decision.Event, ...],
    wake_at: datetime.datetime | None,
    settling: str = "",
) -> decision.Decision:
    status = counts.count(status, sight)
    wake_at = deadlines.earliest(wake_at, restarts.pauses_until(status, case.now))
    was_running = conditions.holds(status, names.Condition.RUNNING)
    runs = completion.running(case.job, sight)
    reason = names.Reason.REPLICAS_RUNNING if runs else names.Reason.REPLICAS_PENDING
    message = "; ".join(filter(None, (_ready_sentence(status), settling)))
    status = case.condition(status, names.Condition.RUNNING, runs, reason, message)
    for kind in (names.Condition.RESTARTING, names.Condition.TRAINING_STALLED):
        if runs and conditions.holds(status, kind):
            status = case.condition(status, kind, False, reason, message)
    if not sight.missing and conditions.holds(status, _REFUSED):
        created = names.Reason.REPLICAS_CREATED
        status = case.condition(status, _REFUSED, False, created, "every pod was created")
    if runs and not was_running:
        events = (*events, case.normal(reason, message))
    told = queueing.progress(case, sight)
    group = gang.steps(case.job, sight, case.children.groups, case.settings.gangs, status.attempt)
    return decision.Decision(
        case.observed(status),
        events=events,
        deletions=(
            *situation.deletions((*sight.stale, *sight.dismissed)),
            *group.deletions,
            *queueing.leftovers(case),
        ),
        changes=(*group.changes, *told),
        creations=_creations(case, status, sight, group),
        wake_at=wake_at,
    )


def _creations(
    case: situation.Case, status: job_status.JobStatus, sight: view.View, group: gang.Steps
) -> tuple[decision.Manifest, ...]:
    """Build what is missing; a gang begins only when every pod of the one before is gone."""
    if not case.children.may_create:
        return ()
    manifests = []
    if not case.children.has_service:
        manifests.append(build.service(case.job))
    if not case.children.has_config:
        manifests.append(build.config(_asked_for(case), case.settings))
    if isolation.isolated(case.job) and not case.children.has_policy:
        manifests.append(isolation.policy(case.job))
    if group.manifest is not None:
        manifests.append(build.pod_group(case.job, group.manifest))
    paused = restarts.pauses_until(status, case.now) is not None
    if paused or any(pod.attempt != status.attempt for pod in sight.stale):
        return tuple(manifests)
    # What has vanished waits for the answer to its loss, while that of another one settles.
    taken = {*(pod.replica for pod in sight.stale), *sight.vanished}
    known = cluster_spec.peers(case.job) if sight.missing else None
    pods = [
        build.pod(
            case.job,
            replica,
            case.settings,
            attempt=status.attempt,
            replica_attempt=status.replica_attempts.get(replica.name, 0),
            memory_growths=status.replicas[replica.role.value].memory_growths,
            known=known,
        )
        for replica in sight.missing
        if replica not in taken
    ]
    queueing.place(case, pods)
    if pods:
        manifests += claims.manifests(case.job)
    return (*manifests, *pods)


def _asked_for(case: situation.Case) -> types.TFParallelJob:
    """Return the job as its spec has it, where other workers than those are in force."""
    if case.wanted_workers is None:
        return case.job
    return scaling.with_workers(case.job, case.wanted_workers)


def refused(
    case: situation.Case, status: job_status.JobStatus, refusal: observation.Refusal
) -> decision.Decision:
    """Say why pods cannot be created now; they are tried again, and nothing else changes.

    Told once for each reason: the sentences of a quota differ from pod to pod.
    """
    before = conditions.find(status, _REFUSED)
    true = conditions.holds(status, _REFUSED)
    if true and before is not None and before.reason == refusal.reason:
        return decision.Decision(status, wake_at=deadlines.active(case.job, status))
    message = f"the API server refuses to create pods, trying again: {refusal.message}"
    message = remedies.append(message, remedies.find(refusal.message))
    status = case.condition(status, _REFUSED, True, refusal.reason, message)
    return decision.Decision(
        case.observed(status),
        events=(case.warning(refusal.reason, message),),
        wake_at=deadlines.active(case.job, status),
    )


def _ready_sentence(status: job_status.JobStatus) -> str:
    sentence = f"{status.ready} replicas run or have completed"
    refused = conditions.find(status, _REFUSED)
    if refused is not None and refused.status is job_status.Truth.TRUE:
        return f"{sentence}; {refused.message}"
    waiting = next((c.reason for c in status.replicas.values() if c.reason), "")
    if not waiting:
        return sentence
    return remedies.append(f"{sentence}; {waiting}", remedies.find(waiting))
