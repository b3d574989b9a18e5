"""Pods that their node does not end, because it is dead or has no network."""

import datetime

from tfparallel_operator.core import decision, observation

PATIENCE = datetime.timedelta(seconds=60)
"""How long a pod may exist after its grace period."""

RETRY = datetime.timedelta(seconds=30)
"""When to check a pod again if its node is alive."""


def force_deletions(
    pods: tuple[observation.Pod, ...], now: datetime.datetime
) -> tuple[tuple[decision.Deletion, ...], datetime.datetime | None]:
    """Return the pods that their node should have ended long ago, and when to check again.

    On a node without a network, such a pod may still run and write. The shipped trainer fences
    itself: a process that writes checkpoints knows its attempt, and stops if a newer attempt
    exists. Nothing fences a person's own command, so the Event of the deletion warns. A forced
    deletion does not remove a pod that a finalizer keeps.
    """
    due = [
        (pod, pod.delete_by + PATIENCE)
        for pod in pods
        if pod.delete_by is not None and not pod.finalizers
    ]
    overdue = (pod for pod, at in due if at <= now)
    look_again_at = min((at if at > now else now + RETRY for _, at in due), default=None)
    forced = (decision.Deletion(pod.name, pod.uid, force_from=pod.node) for pod in overdue)
    return tuple(forced), look_again_at
