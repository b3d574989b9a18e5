"""Pods whose node does not end them: after a bounded time their names are freed without it."""

import datetime

from tfparallel_operator.core import decision, observation

PATIENCE = datetime.timedelta(seconds=60)
"""How long after its grace a pod may still be there."""

RETRY = datetime.timedelta(seconds=30)
"""When to look again at a pod whose node lives."""


def deletions(
    pods: tuple[observation.Pod, ...], now: datetime.datetime
) -> tuple[tuple[decision.Deletion, ...], datetime.datetime | None]:
    """Return the pods that their node should have ended long ago, and when to look again.

    On a node without a network such a pod may still run and write. The shipped trainer fences
    itself: who writes checkpoints holds its attempt, and gives way to a newer one. No one fences a
    command of a person's own, so the Event of the deletion warns of it.
    """
    due = [(pod, pod.delete_by + PATIENCE) for pod in pods if pod.delete_by is not None]
    overdue = (pod for pod, at in due if at <= now)
    look_again_at = min((at if at > now else now + RETRY for _, at in due), default=None)
    forced = (decision.Deletion(pod.name, pod.uid, force_from=pod.node) for pod in overdue)
    return tuple(forced), look_again_at
