"""Ends a job, or stops one that must not train."""

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import completion, counts
from tfparallel_operator.core.queue import gang, kueue
from tfparallel_operator.core.remedies import Advice
from tfparallel_operator.core.status import conditions


def succeed(context: DecisionContext) -> decision.Decision | None:
    """End a job that has succeeded, before anything else can stop it."""
    status = context.status
    if not status.attempt or conditions.is_stopped(status):
        return None
    success = completion.success(context.view)
    return (
        None if success is None else end(context, status, names.ConditionType.SUCCEEDED, *success)
    )


def suspend(context: DecisionContext) -> decision.Decision | None:
    """Stop a job that its user has suspended."""
    if not context.job.spec.run_policy.suspend:
        return None
    reason, message = names.Reason.JOB_SUSPENDED, "spec.runPolicy.suspend is true"
    was_suspended = conditions.is_true(context.status, names.ConditionType.SUSPENDED)
    status = conditions.remove(context.status, names.ConditionType.FAILED)
    status = context.stamp.clear(status, conditions.TRANSIENT, reason, message)
    status = context.stamp.set(status, names.ConditionType.SUSPENDED, True, reason, message)
    status = counts.count(status, context.view)
    return decision.Decision(
        status,
        events=() if was_suspended else (decision.normal(reason, message),),
        deletions=(*delete_all_children(context), *kueue.removals(context)),
    )


def fail(
    context: DecisionContext,
    status: job_status.JobStatus,
    reason: str,
    message: str | Advice,
) -> decision.Decision:
    """End a job without success."""
    return end(context, status, names.ConditionType.FAILED, reason, message)


def end(
    context: DecisionContext,
    status: job_status.JobStatus,
    kind: names.ConditionType,
    reason: str,
    message: str | Advice,
) -> decision.Decision:
    """End a job. When the status records the end, the next decision cleans up the pods."""
    finished = names.Reason.JOB_FINISHED
    status = context.stamp.clear(status, conditions.TRANSIENT, finished, "the job has ended")
    status = context.stamp.set(status, kind, True, reason, message)
    status = status.model_copy(update={"completion_time": context.now})
    status = counts.count(status, context.view_of(status))
    event = decision.normal if kind is names.ConditionType.SUCCEEDED else decision.warning
    text = message if isinstance(message, str) else message.message
    return decision.Decision(status, (event(reason, text),), wake_at=context.now)


def delete_all_children(context: DecisionContext) -> tuple[decision.Deletion, ...]:
    """Delete all pods and groups of a job that must not train."""
    return (*delete_pods(context.children.pods), *gang.delete_groups(context.children.groups))


def delete_pods(pods: tuple[observation.Pod, ...]) -> tuple[decision.Deletion, ...]:
    """Delete pods that are not being deleted yet."""
    return tuple(decision.Deletion(pod.name, pod.uid) for pod in pods if not pod.deleting)
