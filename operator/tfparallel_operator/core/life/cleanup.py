"""Cleans up jobs that have ended, and pods that their node does not end."""

import datetime

from tfparallel_operator.api import job_status, names, policies, types
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import counts, deadlines, ending
from tfparallel_operator.core.queue import gang, kueue
from tfparallel_operator.core.status import conditions

Pods = tuple[observation.Pod, ...]

_BY_POLICY = {
    types.CleanPodPolicy.RUNNING: policies.CleanupTarget.RUNNING_PODS,
    types.CleanPodPolicy.ALL: policies.CleanupTarget.PODS,
}

PATIENCE = datetime.timedelta(seconds=60)
"""How long a pod may exist after its grace period."""

RETRY = datetime.timedelta(seconds=30)
"""When to check a pod again if its node is alive."""


def clean_up(context: DecisionContext) -> decision.Decision | None:
    """Clean up after a job that has ended, unless a correction of its spec starts it after all.

    cleanPodPolicy says what to delete at the end, and each stage of `cleanup` what to delete at its
    time. Both apply, but cleanPodPolicy first gives an evaluator its grace period.
    """
    status, now, pods = context.status, context.now, context.children.pods
    corrected = conditions.is_spec_corrected(status, context.job.metadata.generation)
    if not conditions.finished(status) or corrected:
        return None
    status = counts.count(status, context.view, ended=True)
    grace_ends = grace_until(context.job, status, pods, now)
    spared = () if grace_ends is None else evaluators(pods)
    stages = _stages(context.job, status, status.completion_time or now)
    due = [target for target, at in stages if at <= now]
    removed = {pod.uid for target in due for pod in _of_target(target, pods)}
    by_policy = _BY_POLICY.get(context.job.spec.run_policy.clean_pod_policy)
    removed |= {pod.uid for pod in _of_target(by_policy, pods) if pod not in spared}
    later = (at for _, at in stages if at > now)
    delete_job = policies.CleanupTarget.JOB in due
    deletions = ending.delete_pods(tuple(pod for pod in pods if pod.uid in removed))
    return decision.Decision(
        status,
        deletions=(*deletions, *gang.delete_groups(context.children.groups)),
        changes=kueue.finish(context, status),
        delete_job=delete_job,
        wake_at=None if delete_job else deadlines.earliest(grace_ends, *later),
    )


def force_deletions(
    pods: Pods, now: datetime.datetime
) -> tuple[tuple[decision.Deletion, ...], datetime.datetime | None]:
    """Return the pods that their node should have ended long ago, and when to check again.

    On a node without a network, such a pod may still run and write. The shipped trainer fences
    itself: a process that writes checkpoints knows its attempt, and stops if a newer attempt
    exists. Nothing fences a person's own command, so the Event of the deletion warns. A forced
    deletion does not remove a pod that a finalizer keeps.
    """
    due = [
        (pod, pod.delete_by + PATIENCE)
        for pod in pods
        if pod.delete_by is not None and not pod.finalizers
    ]
    overdue = (pod for pod, at in due if at <= now)
    look_again_at = min((at if at > now else now + RETRY for _, at in due), default=None)
    forced = (decision.Deletion(pod.name, pod.uid, force_from=pod.node) for pod in overdue)
    return tuple(forced), look_again_at


def grace_until(
    job: types.TFParallelJob,
    status: job_status.JobStatus,
    pods: Pods,
    now: datetime.datetime,
) -> datetime.datetime | None:
    """Return until when an evaluator may do its last evaluation; None: no evaluator runs."""
    succeeded = conditions.is_true(status, names.ConditionType.SUCCEEDED)
    if not succeeded or status.completion_time is None or not evaluators(pods):
        return None
    seconds = job.spec.run_policy.evaluator_grace_seconds
    until = status.completion_time + datetime.timedelta(seconds=seconds)
    return until if until > now else None


def evaluators(pods: Pods) -> Pods:
    """Return the evaluators that still run."""
    running = observation.Phase.RUNNING
    return tuple(
        pod for pod in pods if pod.replica.role is types.Role.EVALUATOR and pod.phase is running
    )


def _stages(
    job: types.TFParallelJob, status: job_status.JobStatus, ended_at: datetime.datetime
) -> list[tuple[policies.CleanupTarget, datetime.datetime]]:
    """Return the stages of the clean-up that apply to the job's end, each with its time."""
    policy = job.spec.run_policy
    succeeded = conditions.is_true(status, names.ConditionType.SUCCEEDED)
    end = policies.CleanupWhen.SUCCEEDED if succeeded else policies.CleanupWhen.FAILED
    stages = [
        (stage.delete, ended_at + datetime.timedelta(seconds=stage.after_seconds))
        for stage in policy.cleanup
        if stage.when in (policies.CleanupWhen.ENDED, end)
    ]
    if policy.ttl_seconds_after_finished is not None:
        lifetime = datetime.timedelta(seconds=policy.ttl_seconds_after_finished)
        stages.append((policies.CleanupTarget.JOB, ended_at + lifetime))
    return stages


def _of_target(target: policies.CleanupTarget | None, pods: Pods) -> Pods:
    if target is policies.CleanupTarget.RUNNING_PODS:
        return tuple(pod for pod in pods if pod.lingers or not pod.phase.ended)
    return pods if target is policies.CleanupTarget.PODS else ()
