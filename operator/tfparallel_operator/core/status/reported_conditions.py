"""Conditions that follow from what the coordinator of a job reports. Pure."""

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, remedies
from tfparallel_operator.core.status import conditions

_Update = tuple[job_status.JobStatus, tuple[decision.JobEvent, ...]]
"""A status with its conditions, and the Events about those that have become true."""


def update(status: job_status.JobStatus, stamp: conditions.Stamp) -> _Update:
    """Set the conditions by the latest report."""
    status, separating = _warn_of_separate_training(status, stamp)
    status, exceeding = _warn_of_memory(status, stamp)
    return status, (*separating, *exceeding)


def _warn_of_separate_training(status: job_status.JobStatus, stamp: conditions.Stamp) -> _Update:
    """Say whether the replicas of this attempt train models of their own."""
    reported = status.separate_training
    began = status.attempt_time or status.start_time
    advice = None
    if reported is not None and (began is None or reported.last_update_time > began):
        advice = remedies.Advice(f"{reported.cause}. {reported.describe_remedy()}")
    kind, reason = names.ConditionType.SEPARATE_TRAINING, names.Reason.SEPARATE_MODELS
    return _warn(status, stamp, kind, reason, advice)


def _warn_of_memory(status: job_status.JobStatus, stamp: conditions.Stamp) -> _Update:
    """Say whether the planner expects the model to exceed the memory of its devices.

    What an earlier attempt reported holds until this one reports, because a job that does not fit
    may end before that.
    """
    memory = None if status.placement is None else status.placement.exceeded_memory
    advice = None if memory is None else remedies.Advice(memory.problem, memory.remedy)
    kind, reason = names.ConditionType.EXCEEDS_MEMORY, names.Reason.MODEL_TOO_LARGE
    return _warn(status, stamp, kind, reason, advice)


def _warn(
    status: job_status.JobStatus,
    stamp: conditions.Stamp,
    kind: names.ConditionType,
    reason: names.Reason,
    advice: remedies.Advice | None,
) -> _Update:
    """Set a condition to what there is to say, or remove it if that is nothing."""
    before = conditions.find_true(status, kind)
    if advice is None:
        return (status if before is None else conditions.remove(status, kind)), ()
    news = () if before is not None else (decision.warning(reason, advice.message),)
    return stamp.set(status, kind, True, reason, advice), news
