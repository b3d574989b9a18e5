"""Conditions: how they change, and the one word that is derived from them."""

import datetime
from collections.abc import Iterable

from tfparallel_operator.api import job_status, names

_NEVER_RAN = (
    names.Reason.INVALID_SPEC,
    names.Reason.INVALID_TEMPLATE,
    names.Reason.NAME_CONFLICT,
)
"""Failures before anything trained: the next generation of the spec starts the job after all."""

_PASSING = (
    names.Condition.ADMITTED,
    names.Condition.RUNNING,
    names.Condition.RESTARTING,
    names.Condition.TRAINING_STALLED,
    names.Condition.CREATION_REFUSED,
)
"""Conditions that a job which has ended, or is suspended, cannot be in."""


def find(status: job_status.JobStatus, kind: names.Condition) -> job_status.Condition | None:
    """Return a condition, or None when it was never set."""
    return next((condition for condition in status.conditions if condition.type == kind), None)


def holds(status: job_status.JobStatus, kind: names.Condition) -> bool:
    """Whether a condition is set and true."""
    condition = find(status, kind)
    return condition is not None and condition.status is job_status.Truth.TRUE


def denied(status: job_status.JobStatus, kind: names.Condition) -> bool:
    """Whether a condition is set and false."""
    condition = find(status, kind)
    return condition is not None and condition.status is job_status.Truth.FALSE


def finished(status: job_status.JobStatus) -> bool:
    """Whether the job has ended."""
    return holds(status, names.Condition.SUCCEEDED) or holds(status, names.Condition.FAILED)


def set_condition(
    status: job_status.JobStatus,
    kind: names.Condition,
    *,
    true: bool,
    reason: str,
    message: str,
    now: datetime.datetime,
    generation: int,
) -> job_status.JobStatus:
    """Return the status with a condition set; its transition time moves only with its status."""
    truth = job_status.Truth.TRUE if true else job_status.Truth.FALSE
    before = find(status, kind)
    moved = before is None or before.status is not truth
    condition = job_status.Condition(
        type=kind,
        status=truth,
        reason=reason,
        message=message,
        last_transition_time=now if before is None or moved else before.last_transition_time,
        observed_generation=generation,
    )
    others = (other for other in status.conditions if other.type != kind)
    return with_conditions(status, (*others, condition))


def clear_passing(
    status: job_status.JobStatus,
    *,
    reason: str,
    message: str,
    now: datetime.datetime,
    generation: int,
) -> job_status.JobStatus:
    """Return the status without the conditions that only a job in motion can be in."""
    for kind in _PASSING:
        if holds(status, kind):
            status = set_condition(
                status,
                kind,
                true=False,
                reason=reason,
                message=message,
                now=now,
                generation=generation,
            )
    return status


def with_conditions(
    status: job_status.JobStatus, conditions: Iterable[job_status.Condition]
) -> job_status.JobStatus:
    """Return the status with these conditions in a fixed order, and the state they make.

    Types that only another version of the operator knows follow in the order that they have.
    """
    order = {kind.value: place for place, kind in enumerate(names.Condition)}
    ordered = tuple(sorted(conditions, key=lambda one: order.get(one.type, len(order))))
    changed = status.model_copy(update={"conditions": ordered})
    return changed.model_copy(update={"state": state(changed)})


def without(status: job_status.JobStatus, kind: names.Condition) -> job_status.JobStatus:
    """Return the status as if a condition had never been set."""
    return with_conditions(status, (other for other in status.conditions if other.type != kind))


def state(status: job_status.JobStatus) -> names.State:
    """Derive the one word from the conditions: an end outweighs what went before it."""
    for kind, word in (
        (names.Condition.SUCCEEDED, names.State.SUCCEEDED),
        (names.Condition.FAILED, names.State.FAILED),
        (names.Condition.SUSPENDED, names.State.SUSPENDED),
        (names.Condition.RESTARTING, names.State.RESTARTING),
        (names.Condition.RUNNING, names.State.RUNNING),
    ):
        if holds(status, kind):
            return word
    return names.State.PENDING


def rests(status: job_status.JobStatus) -> bool:
    """Whether the job is suspended or has failed."""
    resting = (names.Condition.SUSPENDED, names.Condition.FAILED)
    return any(holds(status, kind) for kind in resting)


def begun(status: job_status.JobStatus) -> bool:
    """Whether an attempt goes on: the job is not suspended, nor refused, nor waits in a queue."""
    return (
        bool(status.attempt) and not denied(status, names.Condition.ADMITTED) and not rests(status)
    )


def corrected(status: job_status.JobStatus, generation: int) -> bool:
    """Whether the job failed for a spec that has been changed since."""
    failed = find(status, names.Condition.FAILED)
    return (
        failed is not None
        and failed.reason in _NEVER_RAN
        and failed.observed_generation < generation
    )
