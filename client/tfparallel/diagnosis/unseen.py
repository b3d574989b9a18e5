"""A job that no operator has looked at. Pure."""

import datetime
from collections.abc import Iterator

from tfparallel import models
from tfparallel.cluster import answers
from tfparallel.diagnosis import findings
from tfparallel_operator.api import names
from tfparallel_operator.core import remedies

_REFUSED = (names.Reason.STATUS_REFUSED, names.Reason.REPLICAS_PENDING)
"""Reasons of Events on jobs whose status the operator cannot write."""

UNSEEN_AFTER = datetime.timedelta(seconds=10)
"""How long an operator that runs may take to look at a new job."""


def diagnose_unseen(facts: findings.Facts) -> findings.Diagnosis | None:
    """Say why a job has no status: the operator has never looked at it."""
    job = facts.job
    if job.status.state is not None:
        return None
    spec = job.manifest.get("spec", {})
    manager = spec.get("managedBy") or spec.get("runPolicy", {}).get("managedBy")
    if manager not in (None, names.CONTROLLER):
        sentence = f"{job.name} is left to {manager}, by spec.managedBy"
        remedy = f"See why {manager} does not run it, or create it again without managedBy."
        return findings.Diagnosis(findings.Kind.UNSEEN, sentence, remedy)
    age = facts.age(job.created)
    if facts.now - job.created < UNSEEN_AFTER:
        sentence = f"{job.name} was created {age} ago, and the operator has not looked at it yet"
        return findings.Diagnosis(findings.Kind.UNSEEN, sentence, "Wait a moment.")
    refused = next(
        (one for one in reversed(_list_own_events(facts)) if one.reason in _REFUSED), None
    )
    if refused is not None:
        remedy = "Give the operator the right that the message names, or correct the policy."
        if refused.reason == names.Reason.STATUS_REFUSED:
            remedy = f"Delete it: `tfparallel delete {job.name}`. Then apply it again, corrected."
        return findings.Diagnosis(
            findings.Kind.REFUSED,
            f"{job.name} cannot have a status: {remedies.shorten(refused.message)}",
            remedy,
            tuple(_describe_events(facts)),
            refused.reason,
        )
    reason, remedy = _missing_operator(facts)
    evidence = tuple(
        findings.Evidence(
            findings.Source.OPERATOR,
            f"Deployment {one.namespace}/{one.name}: {one.ready} of {one.replicas} replicas ready,"
            f" watches {', '.join(one.watched) or 'all namespaces'}",
        )
        for one in facts.operators or ()
    )
    sentence = f"No operator has looked at {job.name} in {age}: {reason}"
    return findings.Diagnosis(findings.Kind.UNSEEN, sentence, remedy, evidence)


def _list_own_events(facts: findings.Facts) -> list[models.Event]:
    """Return the Events of the job itself, oldest first."""
    return [one for one in facts.events if one.object == f"{names.SINGULAR}/{facts.job.name}"]


def _describe_events(facts: findings.Facts) -> Iterator[findings.Evidence]:
    """Yield what the operator could say of the job by Events alone."""
    for event in _list_own_events(facts):
        if event.reason not in _REFUSED:
            text = f"{event.reason} {facts.age(event.time)} ago: {remedies.shorten(event.message)}"
            yield findings.Evidence(findings.Source.EVENT, text)


def _missing_operator(facts: findings.Facts) -> tuple[str, str]:
    """Return why no operator acts, and what to do."""
    namespace = facts.job.namespace
    if facts.operators is None:
        return (
            f"it is not installed, does not run, or does not watch namespace {namespace!r}",
            "Ask an administrator for `kubectl get deployments -A -l"
            " app.kubernetes.io/part-of=tfparallel`.",
        )
    if not facts.operators:
        return "it is not installed in this cluster", f"Install it: `{answers.INSTALL}`."
    watching = [one for one in facts.operators if not one.watched or namespace in one.watched]
    if not watching:
        listed = ", ".join(sorted({name for one in facts.operators for name in one.watched}))
        return (
            f"it watches only {listed}, and the job is in {namespace!r}",
            "Add the namespace to watchNamespaces of the chart, or create the job in one of those.",
        )
    [first, *_] = watching
    where = f"`kubectl -n {first.namespace}"
    if not any(one.ready for one in watching):
        return (
            f"{first.namespace}/{first.name} does not run",
            f"See why: {where} describe deployment {first.name}`.",
        )
    return (
        f"{first.namespace}/{first.name} runs, and does not act",
        f"Read its log: {where} logs deployment/{first.name}`.",
    )
