"""Pods whose node does not end them: after a bounded time their names are freed without it."""

import dataclasses
import datetime

from tfparallel_operator.core import decision, observation

PATIENCE = datetime.timedelta(seconds=60)
"""How long after its grace a pod may still be there."""

RETRY = datetime.timedelta(seconds=30)
"""When to look again at a pod whose node lives."""


@dataclasses.dataclass(frozen=True, slots=True)
class Overdue:
    """What to delete by force, and when to look again."""

    deletions: tuple[decision.Deletion, ...]
    look_again_at: datetime.datetime | None


def deletions(pods: tuple[observation.Pod, ...], now: datetime.datetime) -> Overdue:
    """Return the pods that their node should have ended long ago.

    On a node without a network such a pod may still run and write. The shipped trainer fences
    itself: who writes checkpoints holds its attempt, and gives way to a newer one. No one fences a
    command of a person's own, so the Event of the deletion warns of it.
    """
    deletions = []
    times = []
    for pod in pods:
        if pod.delete_by is None:
            continue
        due = pod.delete_by + PATIENCE
        times.append(due if due > now else now + RETRY)
        if due <= now:
            deletions.append(decision.Deletion(pod.name, pod.uid, force_from=pod.node))
    return Overdue(tuple(deletions), min(times, default=None))
