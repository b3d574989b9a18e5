"""Says in a condition and an Event what keeps a job from getting pods, and who has to act. Pure."""

import dataclasses
import datetime
import enum
import re
from collections.abc import Iterable, Mapping, Sequence

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import decision, observation, remedies
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import dead_nodes, deadlines
from tfparallel_operator.core.status import conditions

STUCK_AFTER = dead_nodes.PATIENCE + dead_nodes.RETRY
"""How long after its grace period a pod counts as stuck: a forced deletion has failed too."""

_LONGEST_LIST = 400
"""Maximum length of a list of objects, so that its sentence and the remedy are not cut."""

_REFUSED = names.ConditionType.CREATION_REFUSED

_OF_NAMES = frozenset(
    {names.Reason.NAME_CONFLICT, names.Reason.NAME_HELD, names.Reason.DELETION_STUCK}
)


class Whose(enum.Enum):
    """The owner of an object whose name a job needs."""

    OTHER = "other"
    """Neither the job nor an earlier one owns it."""
    TFJOB = "TFJob"
    """The TFJob with the job's name owns it."""
    EARLIER = "earlier"
    """An earlier job of this name, or an earlier attempt, owns it."""
    UNLABELED = "unlabeled"
    """The job owns it, but it lacks the label by which the operator watches objects."""


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """An object whose name a job needs."""

    object: str
    """The object as kubectl names it, such as `pod/digits-chief-0`."""
    whose: Whose
    deleting: bool = False
    delete_by: datetime.datetime | None = None
    node: str = ""
    finalizers: tuple[str, ...] = ()

    def is_stuck(self, now: datetime.datetime) -> bool:
        """Whether it is being deleted, but somebody has to help."""
        return self.held_from is not None and self.held_from <= now

    @property
    def held_from(self) -> datetime.datetime | None:
        """When its deletion becomes late, because of finalizers or a node that does not end it."""
        if self.delete_by is None or not (self.finalizers or self.node):
            return None
        return self.delete_by if self.finalizers else self.delete_by + STUCK_AFTER


def explain(holders: Sequence[Holder], now: datetime.datetime) -> observation.Refusal:
    """Return why a job cannot use names. An obstacle that a person must remove comes first."""
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
"""Sentences about objects that somebody has to remove, in order of importance."""


def find_hidden(pods: Iterable[observation.Pod]) -> observation.Refusal | None:
    """Return the sentence about pods without the label by which the operator watches them."""
    hidden = [Holder(f"pod/{pod.name}", Whose.UNLABELED) for pod in pods if pod.hidden]
    now = datetime.datetime.min.replace(tzinfo=datetime.UTC)
    return explain(hidden, now) if hidden else None


def find_stuck(
    pods: Iterable[observation.Pod], now: datetime.datetime
) -> tuple[observation.Refusal | None, datetime.datetime | None]:
    """Return why a job's own pods are not deleted, and when to check again."""
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
    """Say what holds objects that are being deleted.

    Of several causes, name that of the first object.
    """
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
    """Return objects as kubectl names them, as many as fit into a sentence."""
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
) -> tuple[job_status.JobStatus, tuple[decision.JobEvent, ...]]:
    """Return the status that says what keeps the job from pods, and the Event if that is new.

    The messages of a quota differ from pod to pod only in numbers, which is nothing new.
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
    """Return why the job cannot get its objects, and what to do about it."""
    message = refusal.message
    if refusal.reason not in _OF_NAMES:
        what = ", ".join(refusal.objects) or "pods"
        fails = refusal.reason is names.Reason.SERVER_UNAVAILABLE
        verb = "fails" if fails else "refuses"
        message = f"the API server {verb} to create {what}, trying again: {message}"
    return remedies.Advice(message, remedies.find(refusal.message))


def _without_numbers(job: str, message: str) -> str:
    """Return a sentence without the parts that differ between pods and between attempts to create
    them."""
    pod = rf"{re.escape(job)}-(?:{'|'.join(role.label for role in types.Role)})-\d+"
    return re.sub(r"\d+", "#", re.sub(pod, "POD", message))
