"""What is left of a job that has ended, and for how long."""

import dataclasses
import datetime

from tfparallel_operator.api import job_status, names, policies, types
from tfparallel_operator.core import context, decision, observation
from tfparallel_operator.core.life import counts, deadlines, ending
from tfparallel_operator.core.queue import gang, kueue
from tfparallel_operator.core.status import conditions

Pods = tuple[observation.Pod, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Cleanup:
    """What to remove now, and when to look again."""

    pods: Pods
    delete_job: bool
    look_again_at: datetime.datetime | None


def clean_up(context: context.DecisionContext) -> decision.Decision | None:
    """Clean up after a job that has ended, unless a correction of its spec starts it after all."""
    status = context.status
    corrected = conditions.corrected(status, context.job.metadata.generation)
    if not conditions.finished(status) or corrected:
        return None
    status = counts.count(status, context.view, ended=True)
    leftovers = after_end(context.job, status, context.children.pods, context.now)
    groups = gang.removals(context.children.groups)
    return decision.Decision(
        context.observed(status),
        deletions=(*ending.delete_pods(leftovers.pods), *groups),
        changes=kueue.finish(context, status),
        delete_job=leftovers.delete_job,
        wake_at=leftovers.look_again_at,
    )


def after_end(
    job: types.TFParallelJob,
    status: job_status.JobStatus,
    pods: Pods,
    now: datetime.datetime,
) -> Cleanup:
    """Say what to remove of a job that has ended.

    cleanPodPolicy speaks at the end, each stage of `cleanup` at its time; what any of them removes
    is removed. An evaluator gets its grace first.
    """
    policy = job.spec.run_policy
    ended_at = status.completion_time or now
    grace_ends = grace_until(job, status, pods, now)
    removed = {pod.uid for pod in _by_policy(policy.clean_pod_policy, pods)}
    if grace_ends is not None:
        removed -= {pod.uid for pod in evaluators(pods)}
    later = [grace_ends]
    delete_job = False
    for target, at in _stages(job, status, ended_at):
        if at > now:
            later.append(at)
        elif target is policies.CleanupTarget.JOB:
            delete_job = True
        else:
            removed |= {pod.uid for pod in _of_target(target, pods)}
    leftovers = tuple(pod for pod in pods if pod.uid in removed)
    return Cleanup(leftovers, delete_job, None if delete_job else deadlines.earliest(*later))


def grace_until(
    job: types.TFParallelJob,
    status: job_status.JobStatus,
    pods: Pods,
    now: datetime.datetime,
) -> datetime.datetime | None:
    """Return until when an evaluator may do its last evaluation; None when none is at it."""
    succeeded = conditions.holds(status, names.Condition.SUCCEEDED)
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
    """Return what is removed when, for the way in which the job has ended."""
    policy = job.spec.run_policy
    succeeded = conditions.holds(status, names.Condition.SUCCEEDED)
    fitting = {
        policies.CleanupWhen.ENDED,
        policies.CleanupWhen.SUCCEEDED if succeeded else policies.CleanupWhen.FAILED,
    }
    stages = [
        (stage.delete, ended_at + datetime.timedelta(seconds=stage.after_seconds))
        for stage in policy.cleanup
        if stage.when in fitting
    ]
    if policy.ttl_seconds_after_finished is not None:
        lifetime = datetime.timedelta(seconds=policy.ttl_seconds_after_finished)
        stages.append((policies.CleanupTarget.JOB, ended_at + lifetime))
    return stages


def _by_policy(policy: types.CleanPodPolicy, pods: Pods) -> Pods:
    match policy:
        case types.CleanPodPolicy.NONE:
            return ()
        case types.CleanPodPolicy.RUNNING:
            return _of_target(policies.CleanupTarget.RUNNING_PODS, pods)
        case types.CleanPodPolicy.ALL:
            return pods


def _of_target(target: policies.CleanupTarget, pods: Pods) -> Pods:
    if target is policies.CleanupTarget.PODS:
        return pods
    return tuple(pod for pod in pods if pod.lingers or not pod.phase.ended)
