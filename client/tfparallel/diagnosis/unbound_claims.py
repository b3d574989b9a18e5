"""Claims that have no volume: what the cluster says of them. Pure."""

import re
from collections.abc import Iterator

from tfparallel import models
from tfparallel.diagnosis import findings
from tfparallel_operator.core import remedies

_OF_VOLUMES = re.compile(
    r"unbound immediate PersistentVolumeClaims|binding volumes|VolumeBinding"
    r"|didn't find available persistent volumes"
)
"""Words of the scheduler that name no claim."""

_NO_CAUSE = ("WaitForFirstConsumer", "WaitForPodScheduled", "Provisioning")
"""Reasons of Events of a claim that waits for its pod, or that a provisioner works on."""


def find_words(scheduler_words: str, facts: findings.Facts) -> str:
    """Return why a claim has no volume, where that keeps a pod from its node; else nothing.

    Args:
        scheduler_words: about the pod; empty: the scheduler has said nothing.
        facts: what is known of the job.
    """
    if scheduler_words and not _OF_VOLUMES.search(scheduler_words):
        return ""
    return next(filter(None, (_describe_cause(claim, facts) for claim in _unbound(facts))), "")


def list_evidence(words: str, facts: findings.Facts) -> Iterator[findings.Evidence]:
    """Yield the state of the claims that words name, and the latest Event of each."""
    for claim in _unbound(facts):
        if f'"{claim.name}"' not in words:
            continue
        kind = f"of class {claim.storage_class}" if claim.storage_class else "of no class"
        modes = ", ".join(claim.access_modes)
        yield findings.Evidence(
            findings.Source.CLAIM, f"{claim.name} is {claim.phase}, {modes}, {kind}"
        )
        for event in _events(claim, facts)[-1:]:
            text = "" if event.message in words else f": {remedies.shorten(event.message)}"
            yield findings.Evidence(
                findings.Source.EVENT, f"{event.reason} {facts.age(event.time)} ago{text}"
            )


def _unbound(facts: findings.Facts) -> list[models.Claim]:
    return [claim for claim in facts.claims if claim.phase != "Bound"]


def _describe_cause(claim: models.Claim, facts: findings.Facts) -> str:
    subject = f'persistentvolumeclaim "{claim.name}"'
    if claim.phase == "Lost":
        return f"{subject} is Lost: its volume no longer exists"
    if claim.storage_class is None:
        return f"{subject} names no StorageClass, and the cluster has no default"
    causes = [event for event in _events(claim, facts) if event.reason not in _NO_CAUSE]
    return f"{subject}: {causes[-1].reason}: {causes[-1].message}" if causes else ""


def _events(claim: models.Claim, facts: findings.Facts) -> list[models.Event]:
    return [
        event for event in facts.events if event.object == f"persistentvolumeclaim/{claim.name}"
    ]
