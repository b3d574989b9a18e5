"""Cleans up jobs that have ended."""

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
