"""Turns the facts about a job into one sentence. Pure."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from tfparallel.backends.local import detached
from tfparallel.diagnosis import endings, findings, no_operator, pending, slowness, time_spent
from tfparallel.terminal import ages
from tfparallel_operator.api import job_status, names, policies
from tfparallel_operator.core import remedies
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits


def diagnose(facts: findings.JobSnapshot) -> findings.Diagnosis:
    """Return the diagnosis of a job.

    The first rule that applies decides; the rules about ends come first.
    """
    diagnoses = (rule(facts) for rule in _RULES)
    diagnosis = next(filter(None, diagnoses), None) or slowness.diagnose_pace(facts)
    diagnosis = endings.add_node_losses(facts, diagnosis)
    return time_spent.add_goodput(facts, no_operator.add_absence(facts, diagnosis))


def _succeeded(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = facts.find_true(names.ConditionType.SUCCEEDED)
    if condition is None:
        return None
    age = facts.age(condition.last_transition_time)
    separate = _separate(facts)
    if separate is not None:
        sentence = f"{facts.job.name} succeeded {age} ago, but {separate.sentence}"
        return dataclasses.replace(separate, kind=findings.FindingKind.SUCCEEDED, sentence=sentence)
    sentence = f"{facts.job.name} succeeded {age} ago: {condition.message}"
    return findings.Diagnosis(findings.FindingKind.SUCCEEDED, sentence, "")


def _separating(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    separate = _separate(facts)
    if separate is None:
        return None
    return dataclasses.replace(separate, sentence=f"{facts.job.name} runs, but {separate.sentence}")


def _separate(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    """The replicas of a script train models of their own."""
    condition = facts.find_true(names.ConditionType.SEPARATE_TRAINING)
    report = facts.status.separate_training
    if condition is None or report is None:
        return None
    evidence = (findings.describe_condition(condition, facts), *findings.describe_lines(facts))
    remedy = f"{report.describe_remedy()}. Do nothing if you want separate models."
    return findings.Diagnosis(
        findings.FindingKind.SEPARATE, report.cause, remedy, evidence, condition.reason
    )


def _failed(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = facts.find_true(names.ConditionType.FAILED)
    if condition is None:
        return None
    age, problem = facts.age(condition.last_transition_time), conditions.read_problem(condition)
    sentence = f"{facts.job.name} failed {age} ago: {problem}"
    evidence = [findings.describe_condition(condition, facts), *endings.list_exits(facts)]
    evidence += findings.describe_lines(facts)
    remedy = _remedy_of_failure(facts, condition)
    return findings.Diagnosis(
        findings.FindingKind.FAILED, sentence, remedy, tuple(evidence), condition.reason
    )


def _remedy_of_failure(facts: findings.JobSnapshot, condition: job_status.Condition) -> str:
    if condition.reason in (
        names.Reason.INVALID_SPEC,
        names.Reason.INVALID_TEMPLATE,
    ):
        return "Correct the job and apply it again: the operator then starts it."
    if facts.job.folder and condition.reason == detached.PROCESS_ENDED:
        return f"Go on: `tfparallel run JOB.yaml --output {facts.job.folder}`."
    remedy = _find_remedy(facts, condition) or "Correct what its last lines say."
    if facts.job.folder:
        return f"{remedy} Then run the job again."
    again = f"Then submit the job again, after `tfparallel delete {facts.job.name}`"
    if remedy == remedies.BY_EXIT_CODE[exits.Exit.USER_ERROR]:
        again += "; `tfparallel run` tries it on this machine"
    return f"{remedy} {again}."


def _find_remedy(facts: findings.JobSnapshot, condition: job_status.Condition) -> str:
    """Return the remedy for a loss, even if its condition quotes a replica that contains it.

    Of a lack of memory that the planner expected, it says what would make the model fit, too.
    """
    failure = facts.status.failure
    remedy = condition.remedy or ("" if failure is None else failure.remedy)
    expected = facts.find_true(names.ConditionType.EXCEEDS_MEMORY)
    if expected is None or failure is None or failure.cause != policies.Cause.OUT_OF_MEMORY:
        return remedy
    return f"{remedy} {expected.remedy}".strip()


def _suspended(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = facts.find_true(names.ConditionType.SUSPENDED)
    if condition is None:
        return None
    age = facts.age(condition.last_transition_time)
    sentence = f"{facts.job.name} has been suspended for {age}, by runPolicy.suspend"
    remedy = f"Let it run: `tfparallel resume {facts.job.name}`."
    return findings.Diagnosis(findings.FindingKind.SUSPENDED, sentence, remedy)


def _refused(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = facts.find_true(names.ConditionType.CREATION_REFUSED)
    if condition is None:
        return None
    return _explain(
        facts,
        condition,
        findings.FindingKind.REFUSED,
        lead="has waited for {age}:",
        remedy="Correct what the message names: the operator tries again by itself.",
    )


def _queued(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = conditions.find(facts.status, names.ConditionType.ADMITTED)
    waits = condition is not None and condition.reason in (
        names.Reason.JOB_QUEUED,
        names.Reason.JOB_EVICTED,
    )
    if condition is None or not waits or condition.status is not job_status.Truth.FALSE:
        return None
    return _explain(
        facts,
        condition,
        findings.FindingKind.QUEUED,
        lead="has waited for {age} in",
        remedy="Wait until Kueue admits it, or choose another queue.",
        more=_list_events_of_queue(facts, condition),
    )


def _list_events_of_queue(
    facts: findings.JobSnapshot, condition: job_status.Condition
) -> Iterator[findings.Evidence]:
    """Yield Kueue's latest Event, if the condition does not contain its message."""
    workload = f"workload/{names.SINGULAR}-{facts.job.name}"
    for event in [event for event in facts.events if event.object == workload][-1:]:
        if event.message not in condition.message:
            message = remedies.shorten(event.message)
            text = f"{event.reason} {facts.age(event.time)} ago: {message}"
            yield findings.Evidence(findings.EvidenceSource.EVENT, text)


def _stalled(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = facts.find_true(names.ConditionType.TRAINING_STALLED)
    wait = pending.find_wait(facts)
    if condition is None or (wait is not None and wait.reason):
        return None
    return _explain(
        facts,
        condition,
        findings.FindingKind.STALLED,
        lead="has stalled:",
        remedy=f"Read what the coordinator wrote last: `tfparallel logs {facts.job.handle}`.",
        more=findings.describe_lines(facts),
    )


def _restarting(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = facts.find_true(names.ConditionType.RESTARTING)
    if condition is None:
        return None
    problem = conditions.read_problem(condition)
    evidence = [findings.describe_condition(condition, facts), *endings.list_exits(facts)]
    sentence = f"{facts.job.name} restarts as attempt {facts.status.attempt}"
    begins_at = facts.status.attempt_time
    if begins_at is not None and begins_at > facts.now:
        sentence += f" in {ages.age(facts.now, begins_at)}"
    wait = pending.find_wait(facts)
    if wait is not None and wait.reason:
        evidence[0] = findings.describe_condition(condition, facts, problem)
        evidence += pending.list_evidence(wait, facts)
        sentence = f"{sentence}, and {pending.describe_wait(wait)}"
        return findings.Diagnosis(
            findings.FindingKind.RESTARTING,
            sentence,
            wait.remedy,
            tuple(evidence),
            condition.reason,
        )
    evidence += (
        findings.Evidence(
            findings.EvidenceSource.POD, f"{replica.pod} is still being deleted on {replica.node}"
        )
        for replica in facts.replicas
        if replica.phase == "Terminating"
    )
    evidence += findings.describe_lines(facts)
    return findings.Diagnosis(
        findings.FindingKind.RESTARTING,
        f"{sentence}: {problem}",
        _find_remedy(facts, condition) or "Wait: the operator creates the replicas again.",
        tuple(evidence),
        condition.reason,
    )


def _waiting(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    """Replicas wait: all of them, or with parameter servers some."""
    runs = facts.find_true(names.ConditionType.RUNNING) is not None
    wait = pending.find_wait(facts)
    name, ready = facts.job.name, facts.status.ready
    if wait is None:
        if runs:
            return None
        sentence = f"{name} is pending: {_next_act(facts)}"
        return findings.Diagnosis(findings.FindingKind.PENDING, sentence, "Wait a moment.")
    state = f"runs with {ready} replicas" if runs else "is pending"
    sentence = f"{name} {state}: {pending.describe_wait(wait)}"
    evidence = tuple(pending.list_evidence(wait, facts))
    return findings.Diagnosis(findings.FindingKind.PENDING, sentence, wait.remedy, evidence)


def _next_act(facts: findings.JobSnapshot) -> str:
    """Return what the operator does next for a job without waiting replicas."""
    ended = next((replica for replica in facts.replicas if replica.exit_code), None)
    if ended is not None:
        return f"{ended.pod} exited with code {ended.exit_code}, and the operator looks for a cause"
    if facts.replicas:
        return "its replicas have just started"
    return "the operator is about to create its replicas"


def _invalid(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    condition = facts.find_true(names.ConditionType.SPEC_INVALID)
    if condition is None:
        return None
    return _explain(
        facts,
        condition,
        findings.FindingKind.REFUSED,
        lead="keeps its last valid spec:",
        remedy="Correct the field and apply the job again.",
    )


def _warned(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    """A condition warns of a job that trains."""
    condition = next(filter(None, map(facts.find_true, _WARNINGS)), None)
    paced = slowness.diagnose_pace(facts)
    if condition is None or paced.kind is findings.FindingKind.SLOW:
        return None
    problem = conditions.read_problem(condition).rstrip(".")
    evidence = (findings.describe_condition(condition, facts), *paced.evidence)
    sentence = f"{paced.sentence}. But {problem}"
    return findings.Diagnosis(
        paced.kind, sentence, condition.remedy or "", evidence, condition.reason
    )


def _explain(
    facts: findings.JobSnapshot,
    condition: job_status.Condition,
    kind: findings.FindingKind,
    *,
    lead: str,
    remedy: str,
    more: Iterable[findings.Evidence] = (),
) -> findings.Diagnosis:
    """Return the diagnosis that a condition gives.

    Args:
        condition: says what is the matter, and often what to do.
        lead: what stands between the job's name and the cause; {age} is that of the condition.
        remedy: where the condition has none.
        more: evidence besides the condition.
    """
    begin = lead.format(age=facts.age(condition.last_transition_time))
    sentence = f"{facts.job.name} {begin} {remedies.shorten(conditions.read_problem(condition))}"
    evidence = (findings.describe_condition(condition, facts), *more)
    remedy = condition.remedy or remedy
    return findings.Diagnosis(kind, sentence, remedy, evidence, condition.reason)


_WARNINGS = (names.ConditionType.CONTESTED, names.ConditionType.EXCEEDS_MEMORY)
"""Conditions of jobs that train and have a problem. The most important one comes first."""

_RULES: tuple[Callable[[findings.JobSnapshot], findings.Diagnosis | None], ...] = (
    _succeeded,
    _failed,
    no_operator.diagnose_unseen,
    _suspended,
    _refused,  # such as the Workload of a job that would wait for Kueue
    _queued,
    _stalled,
    _restarting,
    _waiting,
    _invalid,
    _warned,
    _separating,
)
