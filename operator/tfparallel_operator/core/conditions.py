"""Conditions: how they change, and the one word that is derived from them."""

import datetime
from collections.abc import Iterable

from tfparallel_operator.api import job_status, names


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
