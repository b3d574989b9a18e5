"""Conditions: how they change, and the state that follows from them."""

import dataclasses
import datetime
from collections.abc import Iterable

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.remedies import Advice
from tfparallel_trainer.contract import plain_text

PROBLEM_BYTES = 1024
"""Maximum bytes of a field with a problem, or with the reason why a pod waits."""

REMEDY_BYTES = 1024
"""Maximum bytes of a field with a remedy, which quotes only names."""

MESSAGE_BYTES = 2048
"""Maximum bytes of a message, because a person reads no more.

The API server accepts 32,768 characters.
"""

_NEVER_RAN = (
    names.Reason.INVALID_SPEC,
    names.Reason.INVALID_TEMPLATE,
    names.Reason.NAME_CONFLICT,
)
"""Failures before any training. The next generation of the spec may start the job after all."""

TRANSIENT = (
    names.ConditionType.ADMITTED,
    names.ConditionType.RUNNING,
    names.ConditionType.RESTARTING,
    names.ConditionType.TRAINING_STALLED,
    names.ConditionType.CREATION_REFUSED,
)
"""Conditions that are never true of a job that has ended or is suspended."""

_FAILING = (
    names.ConditionType.FAILED,
    names.ConditionType.RESTARTING,
    names.ConditionType.TRAINING_STALLED,
)
"""Conditions that a loss explains: without one, the status has no failure."""

_STATES = (
    names.ConditionType.SUCCEEDED,
    names.ConditionType.FAILED,
    names.ConditionType.SUSPENDED,
    names.ConditionType.RESTARTING,
    names.ConditionType.RUNNING,
)
"""Conditions that determine the state of a job while they are true, most important first."""


def find(status: job_status.JobStatus, kind: names.ConditionType) -> job_status.Condition | None:
    """Return a condition, or None when it was never set."""
    return next((condition for condition in status.conditions if condition.type == kind), None)


def find_true(
    status: job_status.JobStatus, kind: names.ConditionType
) -> job_status.Condition | None:
    """Return a condition if it is set and true."""
    condition = find(status, kind)
    return condition if condition and condition.status is job_status.Truth.TRUE else None


def is_true(status: job_status.JobStatus, *kinds: names.ConditionType) -> bool:
    """Whether one of these conditions is set and true."""
    return any(find_true(status, kind) for kind in kinds)


def is_false(status: job_status.JobStatus, kind: names.ConditionType) -> bool:
    """Whether a condition is set and false."""
    condition = find(status, kind)
    return condition is not None and condition.status is job_status.Truth.FALSE


def finished(status: job_status.JobStatus) -> bool:
    """Whether the job has ended."""
    return is_true(status, names.ConditionType.SUCCEEDED, names.ConditionType.FAILED)


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """The time and the generation of the spec with which conditions are set."""

    now: datetime.datetime
    generation: int

    def set(
        self,
        status: job_status.JobStatus,
        kind: names.ConditionType,
        true: bool,
        reason: str,
        message: str | Advice,
    ) -> job_status.JobStatus:
        """Return the status with a condition. Its transition time changes only with its status.

        The message is shortened, because it may quote pods, the API server and users. Only here,
        the problem and the remedy of an `Advice` become a message.
        """
        advice = message if isinstance(message, Advice) else Advice(message)
        truth = job_status.Truth.TRUE if true else job_status.Truth.FALSE
        before = find(status, kind)
        since = before.last_transition_time if before and before.status is truth else self.now
        condition = job_status.Condition(
            type=kind,
            status=truth,
            reason=reason,
            message=plain_text.shorten(advice.message, MESSAGE_BYTES),
            problem=plain_text.shorten(advice.sentence, PROBLEM_BYTES) if advice.remedy else None,
            remedy=plain_text.shorten(advice.remedy, REMEDY_BYTES) if advice.remedy else None,
            last_transition_time=since,
            observed_generation=self.generation,
        )
        others = (other for other in status.conditions if other.type != kind)
        return with_conditions(status, (*others, condition))

    def clear(
        self,
        status: job_status.JobStatus,
        kinds: Iterable[names.ConditionType],
        reason: str,
        message: str,
    ) -> job_status.JobStatus:
        """Return the status with none of these conditions true."""
        for kind in kinds:
            if is_true(status, kind):
                status = self.set(status, kind, False, reason, message)
        return status


def with_conditions(
    status: job_status.JobStatus, conditions: Iterable[job_status.Condition]
) -> job_status.JobStatus:
    """Return the status with these conditions in a fixed order, and the state that follows.

    Conditions that only another version of the operator knows come last, in their own order.
    """
    order = {kind.value: position for position, kind in enumerate(names.ConditionType)}
    ordered = tuple(sorted(conditions, key=lambda condition: order.get(condition.type, len(order))))
    changed = status.model_copy(update={"conditions": ordered})
    failure = status.failure if is_true(changed, *_FAILING) else None
    return changed.model_copy(update={"state": state(changed), "failure": failure})


def read_problem(condition: job_status.Condition) -> str:
    """Return the problem of a condition.

    If it has no remedy, or an older operator wrote it, that is the whole message.
    """
    return condition.problem or condition.message


def state(status: job_status.JobStatus) -> names.State:
    """Derive the state from the conditions. An end outweighs what happened before it."""
    states = (names.State(kind.value) for kind in _STATES if is_true(status, kind))
    return next(states, names.State.PENDING)


def remove(status: job_status.JobStatus, kind: names.ConditionType) -> job_status.JobStatus:
    """Return the status as if a condition had never been set."""
    return with_conditions(status, (other for other in status.conditions if other.type != kind))


def is_stopped(status: job_status.JobStatus) -> bool:
    """Whether the job is suspended or has failed."""
    return is_true(status, names.ConditionType.SUSPENDED, names.ConditionType.FAILED)


def has_begun(status: job_status.JobStatus) -> bool:
    """Whether an attempt continues: the job is not suspended, nor refused, nor waits in a queue."""
    return (
        bool(status.attempt)
        and not is_false(status, names.ConditionType.ADMITTED)
        and not is_stopped(status)
    )


def is_spec_corrected(status: job_status.JobStatus, generation: int) -> bool:
    """Whether the job failed for a spec that has been changed since."""
    failed = find(status, names.ConditionType.FAILED)
    return (
        failed is not None
        and failed.reason in _NEVER_RAN
        and failed.observed_generation < generation
    )
