"""The start of an attempt. The pods of a new job come before its first status.

For every other attempt, the status is written ahead: it records the attempt before its pods exist.
A new job has no status that its pods could contradict, and the labels of the pods name attempt 1.
So the pods come first, and the next decision records the attempt. A status costs the API server as
much as four pods, so 100 jobs of 10 pods start in 0.84 of the time.

Before that status, somebody may edit or suspend the job, or the operator may die. `begin` starts
attempt 2 if the pods belong to another spec. `adopt_attempt` records attempt 1 of a job that does
not train.
"""

import dataclasses

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import restarts
from tfparallel_operator.core.pods import config, restart_policies
from tfparallel_operator.core.queue import kueue
from tfparallel_operator.core.status import conditions


def begin(
    context: DecisionContext,
) -> tuple[DecisionContext, tuple[decision.JobEvent, ...]]:
    """Start the first attempt, or the next one after a suspension or a correction."""
    status = kueue.with_admission(context, context.status)
    if conditions.has_begun(context.status):
        return dataclasses.replace(context, status=status), ()
    waited = conditions.is_false(context.status, names.ConditionType.ADMITTED)
    reason = names.Reason.JOB_ADMITTED if waited else names.Reason.JOB_STARTED
    if conditions.is_true(status, names.ConditionType.SUSPENDED):
        reason, message = names.Reason.JOB_RESUMED, "spec.runPolicy.suspend is false"
        status = context.stamp.set(status, names.ConditionType.SUSPENDED, False, reason, message)
    status = conditions.remove(status, names.ConditionType.FAILED)
    if _has_pods_of_other_spec(context):
        status = restarts.next_attempt(status, context.now)
    status = restarts.next_attempt(status, context.now)
    fresh: dict[str, object] = {
        "start_time": context.now,
        "completion_time": None,
        "last_cause": "",
        "hang": None,
        "node_losses": {},
        "restarts_since_progress": 0,
    }
    status = status.model_copy(update=fresh)
    message = f"attempt {status.attempt} with {len(context.layout.all_replicas)} replicas"
    events = [decision.normal(reason, message)]
    if not context.status.attempt and (ignored := _restarts_in_place(context)):
        message = f"{ignored}: only the operator restarts replicas"
        events.append(decision.warning(names.Reason.RESTART_POLICY_IGNORED, message))
    return dataclasses.replace(context, status=status), tuple(events)


def may_precede_status(context: DecisionContext, decided: decision.Decision) -> bool:
    """Whether the pods of a decision come before its status, as for a new job.

    A job that reserves ports of nodes needs its status first, because other jobs find the ports
    there.
    """
    is_new = context.job.status == job_status.JobStatus() and not context.children.pods
    has_pods = any(manifest["kind"] == "Pod" for manifest in decided.creations)
    return is_new and has_pods and not context.layout.host_ports


def adopt_attempt(
    pods: tuple[observation.Pod, ...], status: job_status.JobStatus
) -> job_status.JobStatus:
    """Record the attempt of pods that precede the first status, if the job does not train."""
    if status.attempt or not pods:
        return status
    adopted = status.model_copy(update={"attempt": max(pod.attempt for pod in pods)})
    return status if conditions.has_begun(adopted) else adopted


def _has_pods_of_other_spec(context: DecisionContext) -> bool:
    """Whether the spec was edited after the pods were created and before the first status."""
    children = context.children
    if context.status.attempt or not children.pods:
        return False
    fingerprint = config.fingerprint(context.requested, context.settings)
    return children.config is None or children.config.fingerprint != fingerprint


def _restarts_in_place(context: DecisionContext) -> str:
    """Say which fields of templates request restarts in place; empty: none does."""
    fields = [
        f"{role.value}.template.spec.{kind}[{number}].{field}"
        for role, spec in context.layout.specs.items()
        for kind, number, field in restart_policies.find(spec.pod_spec)
    ]
    if not fields:
        return ""
    others = f" and {len(fields) - 1} more fields count" if fields[1:] else " counts"
    return f"tfReplicaSpecs.{fields[0]}{others} for nothing"
