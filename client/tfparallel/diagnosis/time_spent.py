"""Says where the time of a job went, and what shortens the longest part of it. Pure."""

import dataclasses
from collections.abc import Iterator, Mapping

from tfparallel.diagnosis import findings
from tfparallel.terminal import activities
from tfparallel_operator.api import names
from tfparallel_operator.core.status import goodput
from tfparallel_trainer.contract import documentation, progress

Activity = names.Activity

_LARGE = 0.1
"""The part of a job's age from which an activity is worth a remedy."""

_BEFORE_TRAINING = frozenset(
    {
        findings.FindingKind.UNSEEN,
        findings.FindingKind.REFUSED,
        findings.FindingKind.QUEUED,
        findings.FindingKind.SUSPENDED,
        findings.FindingKind.PENDING,
    }
)
"""Kinds of jobs whose sentence already says what their time is spent on."""

_REMEDIES: Mapping[Activity, str] = {
    Activity.PULLING: "use a smaller image, or pull it to the nodes beforehand",
    Activity.INPUT_WAIT: "read more files at once, or prepare each example in less time",
    Activity.EVALUATING: "evaluate fewer examples, or add an Evaluator",
    Activity.CHECKPOINTING: "raise trainer.checkpoint.everySteps",
    Activity.RECOMPUTING: "lower trainer.checkpoint.everySteps",
}
"""What shortens an activity, if you can change that in the job."""


def add_goodput(facts: findings.JobSnapshot, diagnosis: findings.Diagnosis) -> findings.Diagnosis:
    """Add the job's goodput; of a job that has run, also as evidence.

    If the diagnosis has no remedy, it gets that of the longest activity apart from training.
    """
    measured = goodput.measure(facts.status, facts.now)
    if measured is None or not measured.age:
        return diagnosis
    diagnosis = dataclasses.replace(diagnosis, goodput=measured)
    if diagnosis.kind in _BEFORE_TRAINING:
        return diagnosis
    evidence = (*diagnosis.evidence, *_list_evidence(measured))
    remedy = diagnosis.remedy or _find_remedy(measured)
    return dataclasses.replace(diagnosis, evidence=evidence, remedy=remedy)


def _list_evidence(measured: goodput.Goodput) -> Iterator[findings.Evidence]:
    source = findings.EvidenceSource.GOODPUT
    yield findings.Evidence(source, activities.describe(measured))
    longest = activities.find_longest_badput(measured)
    if longest is not None and measured.share:
        seconds = measured.seconds[longest]
        duration, share = progress.format_duration(seconds), seconds / measured.age
        text = f"apart from training, {longest} took the most time: {duration} ({share:.0%})"
        yield findings.Evidence(source, text)


def _find_remedy(measured: goodput.Goodput) -> str:
    """Return what shortens the longest activity; empty: it is short, or nothing in the job does."""
    longest = activities.find_longest_badput(measured)
    if longest is None or longest not in _REMEDIES:
        return ""
    share = measured.seconds[longest] / measured.age
    if share < _LARGE:
        return ""
    page = documentation.reference(documentation.Section.TIME_SPENT)
    return f"To shorten {longest} ({share:.0%} of the time), {_REMEDIES[longest]}: {page}"
