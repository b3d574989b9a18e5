"""What keeps a job from getting pods: as a condition and an Event that say who has to act. Pure."""

import dataclasses
import datetime
import enum
import re
from collections.abc import Iterable, Mapping, Sequence

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import decision, observation, remedies
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import cleanup, deadlines
from tfparallel_operator.core.status import conditions

STUCK_AFTER = cleanup.PATIENCE + cleanup.RETRY
"""How long after its grace a pod is there though the operator tried to delete it by force."""

_LONGEST_LIST = 400
"""Characters of a list of objects: a sentence with it and its remedy stays whole."""

_REFUSED = names.Condition.CREATION_REFUSED

_OF_NAMES = frozenset(
    {names.Reason.NAME_CONFLICT, names.Reason.NAME_HELD, names.Reason.DELETION_STUCK}
)


class Whose(enum.Enum):
    """Whose an object is that has a name which a job needs."""

    OTHER = "other"
    """Neither the job's nor an earlier one's."""
    TFJOB = "TFJob"
    """The TFJob's of the job's name."""
    EARLIER = "earlier"
    """An earlier job's of this name, or an earlier attempt's."""
    UNLABELED = "unlabeled"
    """The job's own, without the label that the operator follows objects by."""


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """An object that has a name which a job needs."""

    object: str
    """As kubectl names it: `pod/digits-chief-0`."""
    whose: Whose
    deleting: bool = False
    delete_by: datetime.datetime | None = None
    node: str = ""
    finalizers: tuple[str, ...] = ()

    def is_stuck(self, now: datetime.datetime) -> bool:
        """Whether it does not go by itself though it is being deleted."""
        return self.held_from is not None and self.held_from <= now

    @property
    def held_from(self) -> datetime.datetime | None:
        """From when on its deletion is late: it has finalizers, or a node that does not end it."""
        if self.delete_by is None or not (self.finalizers or self.node):
            return None
        return self.delete_by if self.finalizers else self.delete_by + STUCK_AFTER


def explain(holders: Sequence[Holder], now: datetime.datetime) -> observation.Refusal:
    """Return why a job cannot have names: what a person has to do something about comes first."""
    for whose, sentence in _FOREIGN.items():
        objects = [
            holder.object for holder in holders if holder.whose is whose and not holder.deleting
        ]
        if objects:
            message = sentence.format(_enumerate(objects))
            return _refusal(names.Reason.NAME_CONFLICT, message, objects)
    stuck = [holder for holder in holders if holder.is_stuck(now)]
    if stuck:
        return _explain_stuck(stuck)
    objects = [holder.object for holder in holders]
    are = "is" if len(objects) == 1 else "are"
    is_earlier = all(holder.whose is Whose.EARLIER for holder in holders)
    source = " of an earlier job or attempt" if is_earlier else ""
    message = f"{_enumerate(objects)}{source} {are} not gone yet"
    return _refusal(names.Reason.NAME_HELD, message, objects)


_FOREIGN: Mapping[Whose, str] = {
    Whose.OTHER: "objects that are not the job's own have names that it needs: {}",
    Whose.TFJOB: "objects of the TFJob of this name have names that the job needs: {}",
    Whose.UNLABELED: f"objects have lost the label {names.LABEL_MANAGED_BY}, so that the operator"
    " does not follow them: {}",
}
"""Sentences about objects that do not go by themselves, in the order in which they are said."""


def find_hidden(pods: Iterable[observation.Pod]) -> observation.Refusal | None:
    """Return what is said of a job's pods that have lost the label that they are followed by."""
    hidden = [Holder(f"pod/{pod.name}", Whose.UNLABELED) for pod in pods if pod.hidden]
    now = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return explain(hidden, now) if hidden else None


def find_stuck(
    pods: Iterable[observation.Pod], now: datetime.datetime
) -> tuple[observation.Refusal | None, datetime.datetime | None]:
    """Return why a job's own pods do not go away, and when to look again."""
    holders = [
        Holder(
            f"pod/{pod.name}",
            Whose.EARLIER,
            pod.deleting,
            pod.delete_by,
            pod.node,
            pod.finalizers,
        )
        for pod in pods
    ]
    stuck = [holder for holder in holders if holder.is_stuck(now)]
    later = (holder.held_from for holder in holders if not holder.is_stuck(now))
    return _explain_stuck(stuck) if stuck else None, deadlines.earliest(*later)


def _explain_stuck(holders: Sequence[Holder]) -> observation.Refusal:
    """Say what holds objects that are being deleted; of several causes the first object's."""
    first = holders[0]
    if first.finalizers:
        same = [holder.object for holder in holders if holder.finalizers == first.finalizers]
        finalizers = ",".join(first.finalizers)
        message = f"finalizer {finalizers} keeps {_enumerate(same)} after the deletion"
    else:
        same = [
            holder.object
            for holder in holders
            if holder.node == first.node and not holder.finalizers
        ]
        message = f"node {first.node} has not ended {_enumerate(same)} after the grace period"
    return _refusal(names.Reason.DELETION_STUCK, message, same)


def _refusal(reason: names.Reason, message: str, objects: Sequence[str]) -> observation.Refusal:
    return observation.Refusal(reason, message, final=False, objects=tuple(objects))


def _enumerate(objects: Sequence[str]) -> str:
    """Return objects as kubectl takes them, as many as a sentence may have."""
    ordered, length = sorted(objects), 0
    shown: list[str] = []
    for name in ordered:
        length += len(name) + 1
        if shown and length > _LONGEST_LIST:
            break
        shown.append(name)
    more = len(ordered) - len(shown)
    return f"{' '.join(shown)}{f', and {more} more' if more else ''}"


def refuse(
    context: DecisionContext,
    status: job_status.JobStatus,
    refusal: observation.Refusal,
) -> tuple[job_status.JobStatus, tuple[decision.Event, ...]]:
    """Return the status that says what keeps the job from pods, and the Event of what is new.

    The sentences of a quota differ from pod to pod in numbers alone: that is nothing new.
    """
    advice = describe(refusal)
    message = advice.message
    before = conditions.find_true(status, _REFUSED)
    if before is not None and before.reason == refusal.reason:
        name = context.job.metadata.name
        if _without_numbers(name, before.message) == _without_numbers(name, message):
            return status, ()
    status = context.stamp.set(status, _REFUSED, True, refusal.reason, advice)
    passes = refusal.reason is names.Reason.NAME_HELD
    event = decision.normal if passes else decision.warning
    return status, (event(refusal.reason, message),)


def describe(refusal: observation.Refusal) -> remedies.Advice:
    """Return what keeps a job from objects, and what to do about it."""
    message = refusal.message
    if refusal.reason not in _OF_NAMES:
        what = ", ".join(refusal.objects) or "pods"
        fails = refusal.reason is names.Reason.SERVER_UNAVAILABLE
        verb = "fails" if fails else "refuses"
        message = f"the API server {verb} to create {what}, trying again: {message}"
    return remedies.Advice(message, remedies.find(refusal.message))


def _without_numbers(job: str, message: str) -> str:
    """Return a sentence without what differs from pod to pod, and from try to try."""
    pod = rf"{re.escape(job)}-(?:{'|'.join(role.label for role in types.Role)})-\d+"
    return re.sub(r"\d+", "#", re.sub(pod, "POD", message))
