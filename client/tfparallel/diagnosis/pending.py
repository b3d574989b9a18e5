"""Finds the pod that explains best why pods wait. Pure."""

import dataclasses
from collections.abc import Iterator

from tfparallel import models
from tfparallel.diagnosis import findings
from tfparallel_operator.core import pending_reasons, remedies
from tfparallel_operator.core.pods import avoided_nodes


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """A pod that does not run yet."""

    pod: pending_reasons.WaitingPod
    reason: str
    """The message of the scheduler, the kubelet or a volume controller; empty: none."""
    others: int
    """How many more pods wait."""
    known_remedy: str
    """The remedy for the reason; empty: none is known."""
    other_causes: tuple[str, ...] = ()
    """Other reasons why some of them wait, with remedies."""

    @property
    def remedy(self) -> str:
        """The remedy."""
        if self.reason:
            describe = f"`kubectl describe pod {self.pod.name}`"
            return self.known_remedy or f"See what the cluster says of it: {describe}."
        if self.pod.node:
            return "Wait: to pull a large image takes minutes."
        return "Wait a moment: the scheduler has not looked at it yet."


def find_wait(facts: findings.JobSnapshot) -> Wait | None:
    """Return the waiting pod whose message explains most."""
    pending = [replica for replica in facts.replicas if replica.phase == "Pending"]
    if not pending:
        return None
    pods = [_read_status(replica, facts) for replica in pending]
    reasons = [(pod.find_words(facts.events, facts.claims), pod) for pod in pods]
    reasons.sort(key=lambda reason: pending_reasons.weigh(reason[0], reason[1].node))
    by_words: dict[str, pending_reasons.WaitingPod] = {}
    for cause, pod in reasons:
        by_words.setdefault(cause, pod)
    listed_advice = [
        remedies.Advice(f"{pod.name} waits: {cause}", remedies.find(cause))
        for cause, pod in by_words.items()
        if cause
    ]
    other_causes = [advice.message for advice in remedies.distinguish(listed_advice)[1:]]
    cause, pod = reasons[0]
    remedy = avoided_nodes.find_remedy(facts.status, cause)
    return Wait(pod, cause, len(pending) - 1, remedy, tuple(other_causes))


def describe_wait(wait: Wait) -> str:
    """Return the clause that says which pods wait, and why."""
    name = wait.pod.name
    subject = f"{name} waits" if not wait.others else f"{name} and {wait.others} more wait"
    if wait.reason:
        return f"{subject}: {remedies.shorten(wait.reason).rstrip('.')}"
    if wait.pod.node:
        return f"{subject} for its containers, which {wait.pod.node} creates"
    return f"{subject} for a node"


def list_evidence(wait: Wait, facts: findings.JobSnapshot) -> Iterator[findings.Evidence]:
    """Yield the state of the pod, and the latest warnings of the cluster about it."""
    pod = wait.pod
    where = f", on {pod.node}" if pod.node else ", on no node"
    since = "" if pod.created is None else f" for {facts.age(pod.created)}"
    yield findings.Evidence(findings.EvidenceSource.POD, f"{pod.name} is Pending{since}{where}")
    for event in pod.list_warnings(facts.events)[-2:]:
        often = f" {event.count} times, last" if event.count > 1 else ""
        message = remedies.without_preemption(event.message)
        suffix = "" if message in wait.reason else f": {remedies.shorten(message)}"
        text = f"{event.reason}{often} {facts.age(event.time)} ago{suffix}"
        yield findings.Evidence(findings.EvidenceSource.EVENT, text)
    yield from _list_evidence_of_claims(wait.reason, facts)
    for cause in wait.other_causes:
        yield findings.Evidence(findings.EvidenceSource.POD, cause)


def _list_evidence_of_claims(
    reason: str, facts: findings.JobSnapshot
) -> Iterator[findings.Evidence]:
    """Yield the state of the claims that a message names, and the latest Event of each."""
    for claim in facts.claims:
        if claim.is_bound or f'"{claim.name}"' not in reason:
            continue
        kind = f"of class {claim.storage_class}" if claim.storage_class else "of no class"
        modes = ", ".join(claim.access_modes)
        yield findings.Evidence(
            findings.EvidenceSource.CLAIM, f"{claim.name} is {claim.phase}, {modes}, {kind}"
        )
        for event in pending_reasons.of_object(facts.events, "persistentvolumeclaim", claim.name)[
            -1:
        ]:
            text = "" if event.message in reason else f": {remedies.shorten(event.message)}"
            yield findings.Evidence(
                findings.EvidenceSource.EVENT, f"{event.reason} {facts.age(event.time)} ago{text}"
            )


def _read_status(
    replica: models.Replica, facts: findings.JobSnapshot
) -> pending_reasons.WaitingPod:
    reason = _find_words_of_status(replica, facts)
    return pending_reasons.WaitingPod(replica.pod, reason, replica.node, replica.created)


def _find_words_of_status(replica: models.Replica, facts: findings.JobSnapshot) -> str:
    """Return the message of the pod, or else the one that the operator copied into the job's
    status."""
    if replica.reason not in pending_reasons.UNREMARKABLE:
        return replica.reason
    label = replica.name.rpartition("-")[0]
    for role, counts in facts.status.replicas.items():
        if counts.waiting is not None and counts.waiting.pod == replica.pod:
            return counts.waiting.reason
        if counts.waiting is None and role.lower() == label:
            return counts.reason  # An older operator names the pod in the sentence alone.
    return ""
