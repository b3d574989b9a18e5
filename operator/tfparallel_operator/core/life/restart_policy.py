"""Restarts, fails or ignores a loss: by failurePolicy, then the strategy, then backoffLimit."""

import dataclasses
import enum

from tfparallel_operator.api import job_status, names, policies, types
from tfparallel_operator.core import pod_ends
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.life import failure
from tfparallel_operator.core.status import replica_records


class Scope(enum.StrEnum):
    """Which replicas restart after a loss."""

    GANG = "all replicas"
    REPLICA = "this replica"
    REPLICA_AND_CHIEF = "this server and the chief"


EVENT_ACTIONS = {
    Scope.GANG: names.EventAction.RESTART_ALL,
    Scope.REPLICA: names.EventAction.RESTART_REPLICA,
    Scope.REPLICA_AND_CHIEF: names.EventAction.RESTART_WITH_CHIEF,
}


class LossAction(enum.Enum):
    """What happens to the job."""

    RESTART = enum.auto()
    FAIL = enum.auto()
    IGNORE = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class LossResponse:
    """The answer to a loss."""

    outcome: LossAction
    reason: names.Reason
    message: str
    remedy: str = ""
    """The remedy, if one is known."""
    event_action: names.EventAction = names.EventAction.RECONCILE


def find_action(layout: Layout, status: job_status.JobStatus, loss: failure.Loss) -> LossResponse:
    """Return the action after a loss. The loss of an evaluator never fails the job."""
    action = dataclasses.replace(_find_action(layout, status, loss), remedy=loss.remedy)
    if action.outcome is LossAction.FAIL and loss.replica.role is types.Role.EVALUATOR:
        return dataclasses.replace(action, outcome=LossAction.IGNORE)
    return action


def _find_action(layout: Layout, status: job_status.JobStatus, loss: failure.Loss) -> LossResponse:
    lost = loss.describe(layout.job.metadata.name)
    ruled = _find_ruled_action(layout.job, loss)
    reason = _REASONS.get(loss.cause, names.Reason.REPLICA_FAILED)
    if loss.exit is not None and loss.cause.bounded:
        reason = names.Reason.REPLICA_FAILED
    if loss.end is pod_ends.VERIFICATION_FAILED:
        reason = names.Reason.VERIFICATION_FAILED
    if loss.exit is not None and loss.exit.of_source:
        reason = names.Reason.SOURCE_FAILED
    if ruled is policies.Action.IGNORE and _may_go_without(layout, status, loss):
        return LossResponse(LossAction.IGNORE, names.Reason.FAILURE_POLICY, lost)
    if ruled in (policies.Action.FAIL_JOB, policies.Action.IGNORE):
        message = f"{lost}; a rule of runPolicy.failurePolicy fails the job"
        return LossResponse(LossAction.FAIL, names.Reason.FAILURE_POLICY, message)
    if ruled is None and not _restarts(layout, loss):
        return LossResponse(LossAction.FAIL, reason, lost)
    if ruled is None and _hung_there_before(layout, status, loss):
        message = f"{lost}; it hung at the same place before"
        return LossResponse(LossAction.FAIL, names.Reason.HUNG_AGAIN, message)
    limit = layout.job.spec.run_policy.backoff_limit
    if loss.cause.bounded and counted(layout, status, loss) >= limit:
        message = f"{lost}; all {limit} restarts of runPolicy.backoffLimit are used"
        return LossResponse(LossAction.FAIL, names.Reason.BACKOFF_LIMIT_EXCEEDED, message)
    nth = counted(layout, status, loss) + 1
    bound = f"failure {nth} of {limit} that lead to a restart"
    bound = bound if loss.cause.bounded else _UNBOUNDED[loss.cause]
    restarted = scope(layout, loss)
    message = f"{lost}; {restarted.value} run again ({bound})"
    event_action = EVENT_ACTIONS[restarted]
    return LossResponse(LossAction.RESTART, reason, message, event_action=event_action)


_REASONS = {
    policies.Cause.DISRUPTION: names.Reason.REPLICA_LOST,
    policies.Cause.INFRASTRUCTURE: names.Reason.REPLICA_LOST,
    policies.Cause.PENDING_TOO_LONG: names.Reason.PENDING_DEADLINE_EXCEEDED,
    policies.Cause.STALL: names.Reason.STALL_DEADLINE_EXCEEDED,
}
"""Reasons of losses; a replica that ended with an exit code has failed, whatever its cause."""

_UNBOUNDED = {
    policies.Cause.DISRUPTION: "a disruption",
    policies.Cause.INFRASTRUCTURE: "nothing has run in it",
}


def _find_ruled_action(job: types.TFParallelJob, loss: failure.Loss) -> policies.Action | None:
    """Return the action of the first rule that matches a loss; None: no rule matches."""
    policy = job.spec.run_policy.failure_policy
    code = None if loss.exit is None else loss.exit.code
    for rule in () if policy is None else policy.rules:
        if (
            (not rule.roles or loss.replica.role in rule.roles)
            and (not rule.exit_codes or code in rule.exit_codes)
            and (not rule.causes or loss.cause in rule.causes)
        ):
            return rule.action
    return None


def _hung_there_before(layout: Layout, status: job_status.JobStatus, loss: failure.Loss) -> bool:
    """Whether training hung after the same sign of life before.

    The stack does not count. While one replica is stuck in its data, its peers wait for it in a
    collective, and any of them may be the first to end. The last step is the same for all of them.
    It is another one if training got further in between.
    """
    hang = loss.record_hang(layout.job.metadata.name)
    return hang is not None and status.hang is not None and hang.after == status.hang.after


def _may_go_without(layout: Layout, status: job_status.JobStatus, loss: failure.Loss) -> bool:
    """Whether the job can still end with success without a replica."""
    if loss.cause is policies.Cause.STALL:
        return False  # A stall affects the whole job, not one replica.
    success_policy = layout.job.spec.success_policy
    if layout.chief or success_policy is not types.SuccessPolicy.ALL_WORKERS:
        return loss.replica != layout.coordinator
    worker = types.Role.WORKER
    ignored = replica_records.read(status, worker).ignored
    return len(ignored | {loss.replica.index}) < layout.counts[worker]


def _restarts(layout: Layout, loss: failure.Loss) -> bool:
    """Whether a loss that no rule matches leads to a restart, regardless of its budget."""
    match loss.cause:
        case policies.Cause.PENDING_TOO_LONG | policies.Cause.PERMANENT_EXIT:
            return False
        case policies.Cause.DISRUPTION | policies.Cause.INFRASTRUCTURE:
            return True
        case _ if loss.exit is None:
            return True
        case policies.Cause.OUT_OF_MEMORY if grows(layout.job, loss):
            return True
        case _:
            return failure.permits_restart(layout, loss.replica.role, loss.code)


def grows(job: types.TFParallelJob, loss: failure.Loss) -> bool:
    """Whether the lost replica's role gets more memory."""
    ended = loss.exit
    killed = ended is not None and ended.reason == pod_ends.OOM_KILLED and not ended.of_source
    return killed and loss.code >= 0 and job.spec.run_policy.out_of_memory is not None


def scope(layout: Layout, loss: failure.Loss) -> Scope:
    """Return which replicas restart: the whole gang if it waits, else as a rule or the strategy
    says."""
    ruled, role = _find_ruled_action(layout.job, loss), loss.replica.role
    if loss.of_waiting_gang or ruled is policies.Action.RESTART_GANG:
        return Scope.GANG
    if ruled is policies.Action.RESTART_REPLICA or role is types.Role.EVALUATOR:
        return Scope.REPLICA
    if layout.is_gang:
        return Scope.GANG
    return Scope.REPLICA_AND_CHIEF if role is types.Role.PS else Scope.REPLICA


def counted(layout: Layout, status: job_status.JobStatus, loss: failure.Loss) -> int:
    """Return how many restarts count against the budget of a loss.

    The evaluator has its own budget in each attempt, so it can never use up that of training.
    """
    if has_own_budget(layout, loss):
        return status.replica_attempts.get(loss.replica.name, 0)
    return status.restarts.failure


def has_own_budget(layout: Layout, loss: failure.Loss) -> bool:
    """Whether a loss counts against the evaluator's budget."""
    return loss.replica.role is types.Role.EVALUATOR and scope(layout, loss) is Scope.REPLICA
