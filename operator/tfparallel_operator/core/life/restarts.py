"""Writes restarts ahead in the status: attempts, counters, pauses."""

import datetime
from collections.abc import Iterable, Sequence

from tfparallel_operator.api import job_status, policies, types
from tfparallel_operator.core import pod_ends, replicas
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.life import failure, restart_policy, slowness
from tfparallel_operator.core.status import replica_records
from tfparallel_operator.core.view import View

LONGEST_PAUSE = datetime.timedelta(minutes=5)

_BOUNDED = frozenset(cause.value for cause in policies.Cause if cause.bounded)


def restart(
    layout: Layout,
    status: job_status.JobStatus,
    loss: failure.Loss,
    others: Sequence[failure.Loss],
    begins_at: datetime.datetime,
) -> job_status.JobStatus:
    """Return the status that writes a restart ahead. Its attempt counts before any deletion.

    Replicas that the cluster took at the same time restart together with the root cause, each in
    its own next attempt. The operator may create the new pods when the attempt begins.
    """
    # Failures of the evaluator are counted by its own attempts alone.
    is_counted = not (loss.cause.bounded and restart_policy.has_own_budget(layout, loss))
    changed = count(status, loss.cause) if is_counted else status
    if restart_policy.grows(layout.job, loss):
        changed = replica_records.grow_memory(changed, loss.replica.role)
    if restart_policy.scope(layout, loss) is restart_policy.Scope.GANG:
        return next_attempt(changed, begins_at)
    again: set[replicas.Replica] = set()
    for lost in (loss, *(other for other in others if not other.cause.bounded)):
        again.add(lost.replica)
        if restart_policy.scope(layout, lost) is restart_policy.Scope.REPLICA_AND_CHIEF:
            again.add(layout.coordinator)
    return restart_alone(changed, again, begins_at)


def restart_alone(
    status: job_status.JobStatus, again: Iterable[replicas.Replica], begins_at: datetime.datetime
) -> job_status.JobStatus:
    """Return the status in which some replicas restart within the job's attempt."""
    attempts, pods_since = dict(status.replica_attempts), dict(status.replica_pods_since)
    for replica in again:
        attempts[replica.name] = attempts.get(replica.name, 0) + 1
        pods_since.pop(replica.name, None)
    changed = replica_records.forget_seen(status, again)
    return changed.model_copy(
        update={
            "replica_attempts": attempts,
            "replica_pods_since": pods_since,
            "attempt_time": begins_at,
        }
    )


def next_attempt(
    status: job_status.JobStatus, begins_at: datetime.datetime
) -> job_status.JobStatus:
    """Return the status of a new attempt, in which all replicas restart."""
    return replica_records.begin_attempt(status).model_copy(
        update={
            "attempt": status.attempt + 1,
            "attempt_time": begins_at,
            "replica_attempts": {},
            "in_place": None,
            "replica_pods_since": {},
        }
    )


def pause(
    context: DecisionContext, status: job_status.JobStatus, loss: failure.Loss
) -> datetime.timedelta:
    """Return how long to wait before a restart: twice as long each time, up to a maximum.

    All restarts without progress in between count, whatever their cause. So do all failures, except
    after a long run. A loss during a pause waits for the end of that pause.
    """
    begins_at = pauses_until(status, context.now)
    if begins_at is not None:
        return begins_at - context.now
    earlier = slowness.count_restarts(status, context.now) - 1
    if loss.cause is policies.Cause.INFRASTRUCTURE:
        earlier += 1
    elif loss.cause.bounded and not slowness.has_run_long(status, context.now):
        earlier = max(earlier, restart_policy.counted(context.layout, status, loss))
    if not earlier:
        return datetime.timedelta()
    return min(LONGEST_PAUSE, context.settings.first_pause * (1 << min(earlier - 1, 20)))


def pauses_until(status: job_status.JobStatus, now: datetime.datetime) -> datetime.datetime | None:
    """Return when the attempt begins, if it waits.

    A time that a wrong clock has set does not count.
    """
    begins_at = status.attempt_time
    return begins_at if begins_at and now < begins_at <= now + LONGEST_PAUSE else None


def reclassify_as_disruption(status: job_status.JobStatus, view: View) -> job_status.JobStatus:
    """Return the status with the latest restart counted as a disruption, if it turns out to be one.

    When a node dies, the peers of its pods exit within seconds, but the cluster reports the node a
    minute later. Then it shows that the cluster took one of the attempt's old pods. The evaluator
    has no peers.
    """
    is_disrupted = any(
        pod_ends.is_taken(pod)
        and pod.attempt < status.attempt
        and pod.replica.role is not types.Role.EVALUATOR
        for pod in view.stale
    )
    if not is_disrupted or status.last_cause not in _BOUNDED:
        return status
    return count(count(status, policies.Cause(status.last_cause), -1), policies.Cause.DISRUPTION)


def count(
    status: job_status.JobStatus, cause: policies.Cause, number: int = 1
) -> job_status.JobStatus:
    """Return the status with more, or fewer, restarts of a cause, which becomes the latest."""
    field = "failure" if cause.bounded else "disruption"
    total = status.restarts.model_copy(update={field: getattr(status.restarts, field) + number})
    of_cause = max(0, status.restart_causes.get(cause.value, 0) + number)
    causes = {**status.restart_causes, cause.value: of_cause}
    return status.model_copy(
        update={
            "restarts": total,
            "restart_count": total.failure + total.disruption,
            "restart_causes": {word: times for word, times in causes.items() if times},
            "last_cause": cause.value,
        }
    )
