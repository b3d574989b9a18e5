"""What the Events of a job say of the ends of its processes. Pure."""

from collections.abc import Iterable

from tfparallel import models
from tfparallel_operator.api import names

PAUSES = frozenset({names.Reason.JOB_SUSPENDED, names.Reason.JOB_EVICTED, names.Reason.JOB_RESUMED})
"""They say that the job waits until somebody resumes it or its queue has room, or has waited."""

_LOSSES = frozenset(
    {
        names.Reason.REPLICA_FAILED,
        names.Reason.REPLICA_LOST,
        names.Reason.SOURCE_FAILED,
        names.Reason.STALL_DEADLINE_EXCEEDED,
        names.Reason.PENDING_DEADLINE_EXCEEDED,
        names.Reason.JOB_EVICTED,
        names.Reason.JOB_SUSPENDED,
        names.Reason.REPLICAS_SCALED,
    }
)

_FAILURES = frozenset(
    {
        names.Reason.BACKOFF_LIMIT_EXCEEDED,
        names.Reason.HUNG_AGAIN,
        names.Reason.FAILURE_POLICY,
        names.Reason.DEADLINE_EXCEEDED,
        names.Reason.VERIFICATION_FAILED,
    }
)
"""They end a job for good, if no training follows; `_LOSSES` may do so as well."""

_SUCCESSES = frozenset({names.Reason.CHIEF_SUCCEEDED, names.Reason.WORKERS_SUCCEEDED})

_STARTS = frozenset({names.Reason.JOB_STARTED, names.Reason.JOB_ADMITTED, names.Reason.JOB_RESUMED})

_OF_COORDINATOR = (names.EventAction.RESTART_ALL, names.EventAction.RESTART_WITH_CHIEF)
"""Actions after which the coordinator runs again, whichever replica was lost."""


def is_loss(event: models.Event) -> bool:
    """Whether replicas start again after an event of the job, or stay away."""
    return event.reason in _LOSSES


def ends(event: models.Event, pod: str) -> bool:
    """Whether an event of the job ended the process of a pod, if it had not ended by itself.

    Args:
        pod: the name of the coordinator's, or of a pod whose strategy restarts all together.
    """
    if not is_loss(event):
        return False
    return event.reason in PAUSES or event.action in _OF_COORDINATOR or names_pod(event, pod)


def names_pod(event: models.Event, pod: str) -> bool:
    """Whether an event of the job is the loss of this pod."""
    return is_loss(event) and event.pod == pod


def may_fail_job(event: models.Event) -> bool:
    """Whether the job ends without success after an event of it, if no training follows."""
    return event.reason in _FAILURES or is_loss(event)


def is_success(event: models.Event) -> bool:
    """Whether the job has succeeded with an event of it."""
    return event.reason in _SUCCESSES


def starts_job(event: models.Event) -> bool:
    """Whether the job starts with an event of it, or starts again after it has waited."""
    return event.reason in _STARTS


def count_attempts(events: Iterable[models.Event]) -> int:
    """Return how many attempts begin with these events of a job."""
    return sum(
        starts_job(event) or (is_loss(event) and event.action == names.EventAction.RESTART_ALL)
        for event in events
    )
