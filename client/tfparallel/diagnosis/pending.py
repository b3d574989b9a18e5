"""Pods that wait: which of them says why, and in which words. Pure."""

import dataclasses
import datetime
import re
from collections.abc import Iterator

from tfparallel import models
from tfparallel.diagnosis import findings, unbound_claims
from tfparallel_operator.core import remedies

_UNREMARKABLE = re.compile(r"(?:ContainerCreating|PodInitializing|)")
"""What every pod passes through: the cause, if any, is in Events alone."""

_NO_CAUSE = re.compile(r'(?:ErrImagePull|ImagePullBackOff)(?:: Back-off pulling image "[^"]*")?')
"""What the kubelet says of an image between two tries: the registry's sentence is in Events."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """A pod that does not run yet."""

    pod: str
    words: str
    """Why, in the words of scheduler, kubelet or the volumes' controllers; empty: nobody said."""
    node: str
    created: datetime.datetime | None
    others: int
    """How many more pods wait."""

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.words:
            known = remedies.find(self.words)
            return known or f"See what the cluster says of it: `kubectl describe pod {self.pod}`."
        if self.node:
            return "Wait: to pull a large image takes minutes."
        return "Wait a moment: the scheduler has not looked at it yet."


def find_wait(facts: findings.Facts) -> Wait | None:
    """Return the pod that waits and says most about why."""
    waiting = [replica for replica in facts.replicas if replica.phase == "Pending"]
    if not waiting:
        return None
    reasons = [(_find_words(replica, facts), replica) for replica in waiting]
    words, replica = min(reasons, key=lambda one: _rank(one[0]))
    return Wait(replica.pod, words, replica.node, replica.created, len(waiting) - 1)


def describe_wait(wait: Wait) -> str:
    """Return the part of a sentence that says what waits, and why."""
    subject = f"{wait.pod} waits" if not wait.others else f"{wait.pod} and {wait.others} more wait"
    if wait.words:
        return f"{subject}: {remedies.shorten(wait.words).rstrip('.')}"
    if wait.node:
        return f"{subject} for its containers, which {wait.node} creates"
    return f"{subject} for a node"


def list_evidence(wait: Wait, facts: findings.Facts) -> Iterator[findings.Evidence]:
    """Yield the state of the pod, and the latest warnings of the cluster about it."""
    where = f", on {wait.node}" if wait.node else ", on no node"
    since = "" if wait.created is None else f" for {facts.age(wait.created)}"
    yield findings.Evidence(findings.Source.POD, f"{wait.pod} is Pending{since}{where}")
    for event in _warnings(wait.pod, facts)[-2:]:
        often = f" {event.count} times, last" if event.count > 1 else ""
        message = remedies.without_preemption(event.message)
        words = "" if message in wait.words else f": {remedies.shorten(message)}"
        text = f"{event.reason}{often} {facts.age(event.time)} ago{words}"
        yield findings.Evidence(findings.Source.EVENT, text)
    yield from unbound_claims.list_evidence(wait.words, facts)


def _rank(words: str) -> int:
    if not words:
        return 3
    if remedies.is_held_by_others(words):
        return 2
    return 0 if remedies.find(words) else 1


def _find_words(replica: models.Replica, facts: findings.Facts) -> str:
    """Return the words that name a cause: the claim's, the pod's, the operator's or an Event's."""
    words = _find_words_of_status(replica, facts)
    if not replica.node and (cause := unbound_claims.find_words(words, facts)):
        return cause
    warnings = _warnings(replica.pod, facts)
    if _NO_CAUSE.fullmatch(words):
        pulls = [event.message for event in warnings if "Failed to pull image" in event.message]
        return f"{words.partition(':')[0]}: {pulls[-1]}" if pulls else words
    if not words and warnings:
        return f"{warnings[-1].reason}: {warnings[-1].message}"
    return words


def _find_words_of_status(replica: models.Replica, facts: findings.Facts) -> str:
    """Return the words of the pod, else those that the operator copied into the job's status."""
    if not _UNREMARKABLE.fullmatch(replica.reason):
        return replica.reason
    for counts in facts.status.replicas.values():
        pod, _, words = counts.reason.partition(": ")
        if pod == replica.pod and words:
            return words
    return ""


def _warnings(pod: str, facts: findings.Facts) -> list[models.Event]:
    """Return the cluster's warnings about a pod, since it exists: names are used again."""
    created = next((one.created for one in facts.replicas if one.pod == pod), None)
    return [
        event
        for event in facts.events
        if event.object == f"pod/{pod}"
        and event.type == "Warning"
        and (created is None or event.time >= created)
    ]
