"""A job that may train: it starts, answers losses, scales, and gets its missing pods."""

import dataclasses

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import decision, remedies
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import (
    admission,
    completion,
    counts,
    deadlines,
    ending,
    failed_nodes,
    in_place,
    obstacles,
    recovery,
    restarts,
    scaling,
    slowness,
    start,
)
from tfparallel_operator.core.pods import (
    claims,
    config,
    network,
    pod_builder,
)
from tfparallel_operator.core.queue import gang, kueue
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View

_REFUSED = names.ConditionType.CREATION_REFUSED


def train(context: DecisionContext) -> decision.Decision:
    """Decide about a job that may run."""
    before = context
    context, events = start.begin(context)
    decided = _fail_at_deadline(context)
    if decided is None:
        continuation = recovery.answer_losses(context)
        decided = (
            continuation
            if isinstance(continuation, decision.Decision)
            else _go_on(context, continuation)
        )
    return dataclasses.replace(
        decided,
        events=(*events, *decided.events, *failed_nodes.announce(before.status, decided.status)),
        creates_first=start.may_precede_status(before, decided),
    )


def _fail_at_deadline(context: DecisionContext) -> decision.Decision | None:
    """End a job that has run for too long."""
    deadline = deadlines.active(context.job, context.status)
    if deadline is None or deadline > context.now:
        return None
    seconds = context.job.spec.run_policy.active_deadline_seconds
    message = f"did not end within {seconds} s of its start (runPolicy.activeDeadlineSeconds)"
    return ending.fail(context, context.status, names.Reason.DEADLINE_EXCEEDED, message)


def _go_on(context: DecisionContext, continuation: recovery.Continuation) -> decision.Decision:
    """Scale a job if its time has come. Else update its conditions, and create missing objects."""
    wake_at = continuation.wake_at
    if not continuation.settling and context.requested.workers != continuation.status.workers:
        scale_at = scaling.due(continuation.status, continuation.view)
        if scale_at is None or scale_at <= context.now:
            return _scale(context, continuation.status)
        wake_at = deadlines.earliest(wake_at, scale_at)
    status, view = continuation.status, continuation.view
    old_pods = in_place.plan(context, status, view)
    if old_pods.may_begin:
        status = in_place.begin_attempt(status, old_pods)
        view = context.view_of(status)
        old_pods = in_place.plan(context, status, view)
    wake_at = deadlines.earliest(wake_at, old_pods.look_again_at)
    status = counts.count(status, view)
    was_running = conditions.is_true(status, names.ConditionType.RUNNING)
    runs = completion.running(view)
    reason = names.Reason.REPLICAS_RUNNING if runs else names.Reason.REPLICAS_PENDING
    progress = slowness.Pace(
        status, context.now, context.job.spec.trainer is not None, context.settings.listening_since
    )
    holdup = None
    if runs and not continuation.settling:
        holdup = progress.find_slowness(context.job.metadata.name)
        wake_at = deadlines.earliest(wake_at, progress.silent_at)
    message = "; ".join(filter(None, (_ready_sentence(status, holdup), continuation.settling)))
    status = context.stamp.set(status, names.ConditionType.RUNNING, runs, reason, message)
    if runs:
        over = (names.ConditionType.RESTARTING, names.ConditionType.TRAINING_STALLED)
        status = context.stamp.clear(status, over, reason, message)
    if not view.missing:
        created = names.Reason.REPLICAS_CREATED
        status = context.stamp.clear(status, [_REFUSED], created, "every pod was created")
    restricted: tuple[decision.JobEvent, ...] = ()
    if view.missing and context.environment.restriction:
        status, restricted = admission.refuse_new_pods(context, status)
        wake_at = deadlines.earliest(wake_at, context.now + admission.LOOK_FOR_PERMISSION)
    news = (decision.normal(reason, message),) if runs and not was_running else ()
    stuck, stuck_from = obstacles.find_stuck(view.stale, context.now)
    if stuck is not None:
        status, warnings = obstacles.refuse(context, status, stuck)
        news = (*news, *warnings)
    group = gang.plan_group_writes(context, view, status.attempt)
    return decision.Decision(
        status,
        events=(*continuation.events, *restricted, *news),
        deletions=(
            *ending.delete_pods((*old_pods.leaving, *view.dismissed)),
            *group.deletions,
            *kueue.leftovers(context),
        ),
        changes=(*group.changes, *kueue.progress(context, view)),
        creations=_creations(context, status, view, group),
        wake_at=deadlines.earliest(wake_at, stuck_from, restarts.pauses_until(status, context.now)),
    )


def _scale(context: DecisionContext, status: job_status.JobStatus) -> decision.Decision:
    """Write the new number of workers ahead, and delete the pods that have to restart for it."""
    reason = names.Reason.REPLICAS_SCALED
    action, again = names.EventAction.RESTART_WITH_CHIEF, "the chief runs"
    if context.layout.is_gang:
        action, again = names.EventAction.RESTART_ALL, "all replicas run"
    message = f"workers {status.workers} to {context.requested.workers}; {again} again"
    status = scaling.scaled(context, status)
    view = dataclasses.replace(context, layout=context.requested).view_of(status)
    status = counts.count(status, view)
    for kind, true in (
        (names.ConditionType.RESTARTING, True),
        (names.ConditionType.RUNNING, False),
    ):
        status = context.stamp.set(status, kind, true, reason, message)
    return decision.Decision(
        status,
        events=(decision.normal(reason, message, action),),
        deletions=ending.delete_pods(view.stale),
        wake_at=deadlines.active(context.job, status),
    )


def _creations(
    context: DecisionContext,
    status: job_status.JobStatus,
    view: View,
    group: decision.GroupWrites,
) -> tuple[decision.Manifest, ...]:
    """Build missing objects. A gang waits until all pods of the previous attempt are gone."""
    children, job = context.children, context.job
    if not context.environment.may_create or context.environment.restriction:
        return ()
    manifests = []
    if not children.has_service:
        manifests.append(network.service(context.layout))
    if children.config is None:
        manifests.append(config.manifest(context.requested, context.settings))
    if job.spec.network is types.Network.ISOLATED and not children.has_policy:
        manifests.append(network.policy(job))
    manifests += group.creations
    waits = group.pods_wait or restarts.pauses_until(status, context.now) is not None
    if waits or any(old.attempt != status.attempt for old in view.stale):
        return tuple(manifests)
    pods = _pods(context, status, view)
    return (*manifests, *(claims.manifests(job) if pods else ()), *pods)


def _pods(
    context: DecisionContext, status: job_status.JobStatus, view: View
) -> list[decision.Manifest]:
    """Build the pods of missing replicas whose names are free.

    While another loss settles, a vanished replica waits for the decision about its own loss.
    """
    occupied = {*(old.replica for old in view.stale), *view.vanished}
    builder = pod_builder.PodBuilder(context.layout, context.settings, status)
    pods = []
    for replica in view.missing:
        if replica not in occupied:
            manifest = builder.build(replica)
            gang.join(manifest, context.job, context.settings.gangs)
            pods.append(manifest)
    kueue.apply_admission(context, pods)
    return pods


def _ready_sentence(status: job_status.JobStatus, holdup: slowness.Slowness | None) -> str:
    sentence = f"{status.ready} replicas run or have completed"
    refused = conditions.find_true(status, _REFUSED)
    if refused is not None:
        return f"{sentence}; {refused.message}"
    waits = [
        remedies.Advice(of_role.reason, of_role.waiting.remedy)
        for of_role in status.replicas.values()
        if of_role.waiting
    ]
    if waits:
        return f"{sentence}; {remedies.join(waits)}"
    if holdup is not None:
        problem = f"{sentence}; training is slow: {holdup.cause}"
        return remedies.Advice(problem, holdup.remedy).message
    return sentence
