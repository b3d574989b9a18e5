"""Diagnoses jobs that no operator has handled, or that no operator handles now. Pure."""

import dataclasses
import datetime
from collections.abc import Iterator, Sequence

from tfparallel import models
from tfparallel.backends.cluster import refusals
from tfparallel.diagnosis import findings
from tfparallel_operator.api import names
from tfparallel_operator.core import remedies

_REFUSED = (names.Reason.STATUS_REFUSED, names.Reason.REPLICAS_PENDING)
"""Reasons of Events on jobs whose status the operator cannot write."""

_WITHOUT_OPERATOR = (
    findings.FindingKind.UNSEEN,
    findings.FindingKind.SUCCEEDED,
    findings.FindingKind.FAILED,
)
"""Kinds of jobs that need no operator, or whose diagnosis names its absence already."""

UNSEEN_AFTER = datetime.timedelta(seconds=10)
"""How long a running operator may take to handle a new job."""


def diagnose_unseen(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    """Say why a job has no status: no operator has handled it."""
    job = facts.job
    if job.status.state is not None:
        return None
    if manager := job.other_manager:
        sentence = f"{job.name} is managed by {manager} (spec.managedBy)"
        remedy = f"See why {manager} does not run it, or create it again without managedBy."
        return findings.Diagnosis(findings.FindingKind.UNSEEN, sentence, remedy)
    age = facts.age(job.created)
    if facts.now - job.created < UNSEEN_AFTER:
        sentence = f"{job.name} was created {age} ago, and the operator has not looked at it yet"
        return findings.Diagnosis(findings.FindingKind.UNSEEN, sentence, "Wait a moment.")
    refused = next(
        (event for event in reversed(_list_own_events(facts)) if event.reason in _REFUSED), None
    )
    if refused is not None:
        remedy = "Give the operator the right that the message names, or correct the policy."
        if refused.reason == names.Reason.STATUS_REFUSED:
            remedy = f"Delete it: `tfparallel delete {job.name}`. Then apply it again, corrected."
        return findings.Diagnosis(
            findings.FindingKind.REFUSED,
            f"{job.name} cannot have a status: {remedies.shorten(refused.message)}",
            remedy,
            tuple(_describe_events(facts)),
            refused.reason,
        )
    reason, remedy = _missing_operator(facts)
    sentence = f"No operator has looked at {job.name} in {age}: {reason}"
    return findings.Diagnosis(
        findings.FindingKind.UNSEEN, sentence, remedy, tuple(_describe_operators(facts))
    )


def add_absence(facts: findings.JobSnapshot, diagnosis: findings.Diagnosis) -> findings.Diagnosis:
    """Add the evidence that no operator runs, if the job has not ended. It comes first.

    The evidence of the job's own objects stays, because an operator may run outside of the cluster.
    """
    absence = None
    if diagnosis.kind not in _WITHOUT_OPERATOR and not facts.job.other_manager:
        absence = explain_absence(facts.operators, facts.job.namespace)
    if absence is None:
        return diagnosis
    reason, remedy = absence
    text = f"none acts on {facts.job.name} now: {reason}. {remedy}"
    first = findings.Evidence(findings.EvidenceSource.OPERATOR, text)
    evidence = (first, *_describe_operators(facts), *diagnosis.evidence)
    return dataclasses.replace(diagnosis, evidence=evidence)


def explain_absence(
    operators: Sequence[models.Operator] | None, namespace: str
) -> tuple[str, str] | None:
    """Return why no operator acts on jobs of a namespace, and what to do.

    None: an operator runs, or your rights do not show operators.
    """
    if operators is None:
        return None
    if not operators:
        return "it is not installed in this cluster", f"Install the operator: `{refusals.INSTALL}`."
    watching = [
        deployment
        for deployment in operators
        if not deployment.watched or namespace in deployment.watched
    ]
    if not watching:
        listed = ", ".join(
            sorted({name for deployment in operators for name in deployment.watched})
        )
        return (
            f"it watches only {listed}, and the job is in {namespace!r}",
            "Add the namespace to watchNamespaces of the chart, or create the job in one of those.",
        )
    if any(deployment.ready for deployment in watching):
        return None
    [first, *_] = watching
    return (
        f"{first.namespace}/{first.name} does not run",
        f"See why: `kubectl -n {first.namespace} describe deployment {first.name}`.",
    )


def _describe_operators(facts: findings.JobSnapshot) -> Iterator[findings.Evidence]:
    for deployment in facts.operators or ():
        watched = ", ".join(deployment.watched) or "all namespaces"
        yield findings.Evidence(
            findings.EvidenceSource.OPERATOR,
            f"Deployment {deployment.namespace}/{deployment.name}: {deployment.ready} of"
            f" {deployment.replicas} replicas ready,"
            f" watches {watched}",
        )


def _list_own_events(facts: findings.JobSnapshot) -> list[models.Event]:
    """Return the Events of the job itself, oldest first."""
    return [event for event in facts.events if event.object == f"{names.SINGULAR}/{facts.job.name}"]


def _describe_events(facts: findings.JobSnapshot) -> Iterator[findings.Evidence]:
    """Yield the operator's Events on the job, if it cannot write the status."""
    for event in _list_own_events(facts):
        if event.reason not in _REFUSED:
            text = f"{event.reason} {facts.age(event.time)} ago: {remedies.shorten(event.message)}"
            yield findings.Evidence(findings.EvidenceSource.EVENT, text)


def _missing_operator(facts: findings.JobSnapshot) -> tuple[str, str]:
    """Return why no operator acts, and what to do."""
    namespace = facts.job.namespace
    if facts.operators is None:
        return (
            f"it is not installed, does not run, or does not watch namespace {namespace!r}",
            "Ask an administrator for `kubectl get deployments -A -l"
            " app.kubernetes.io/part-of=tfparallel`.",
        )
    absence = explain_absence(facts.operators, namespace)
    if absence is not None:
        return absence
    [first, *_] = [
        deployment
        for deployment in facts.operators
        if not deployment.watched or namespace in deployment.watched
    ]
    return (
        f"{first.namespace}/{first.name} runs, and does not act",
        f"Read its log: `kubectl -n {first.namespace} logs deployment/{first.name}`.",
    )
