"""Says how running training progresses, why it is slow, and whether its autoscaler fails. Pure."""

from collections.abc import Iterator

from tfparallel.diagnosis import endings, findings
from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import remedies
from tfparallel_operator.core.life import slowness
from tfparallel_operator.core.status import conditions

_AUTOSCALER_SECONDS = 360.0
"""How long an Event of a failing autoscaler counts.

It fails every 15 seconds, but its Events come every five minutes.
"""


def diagnose_pace(facts: findings.JobSnapshot) -> findings.Diagnosis:
    """Say how training progresses."""
    name, is_script = facts.job.name, facts.job.is_script
    progress = slowness.Pace(facts.status, facts.now, must_report=not is_script)
    holdup = progress.find_slowness(facts.job.handle)
    if progress.report is None and not is_script:
        restarted = _restarted(facts, holdup)
        if restarted is not None:
            return restarted
    if holdup is not None:
        sentence = f"{name} is slow: {holdup.cause}"
        evidence = tuple(_list_evidence_of_slowness(facts))
        return findings.Diagnosis(findings.FindingKind.SLOW, sentence, holdup.remedy, evidence)
    not_scaled = _not_scaled(facts)
    if not_scaled is not None:
        return not_scaled
    if progress.report is not None:
        summary = describe_progress(progress.report)
        sentence = f"{name} trains, and nothing that it reports holds it up: {summary}"
        evidence = tuple(_list_evidence_of_training(progress.report, facts.status))
        return findings.Diagnosis(findings.FindingKind.TRAINING, sentence, "", evidence)
    running = conditions.find(facts.status, names.ConditionType.RUNNING)
    age = facts.age(facts.now if running is None else running.last_transition_time)
    lines = tuple(findings.describe_lines(facts))
    if is_script:
        sentence = f"{name} has run its own command for {age}, which reports no progress"
        remedy = f"Read its log: `tfparallel logs {facts.job.handle} --all`."
        return findings.Diagnosis(findings.FindingKind.TRAINING, sentence, remedy, lines)
    sentence = f"{name} starts: its replicas have run for {age}, and no step has ended yet"
    return findings.Diagnosis(findings.FindingKind.STARTING, sentence, "Wait a moment.", lines)


def _restarted(
    facts: findings.JobSnapshot, holdup: slowness.Slowness | None
) -> findings.Diagnosis | None:
    """Say why the job last restarted, until a step of the attempt has ended."""
    status, name = facts.status, facts.job.name
    if not status.last_cause:
        return None
    newest = endings.describe_newest(facts)
    sentence = f"{name} has restarted for {status.last_cause}, and no step has ended since"
    remedy = "Wait a moment." if holdup is None else holdup.remedy
    if newest is not None:
        exit_text, last = newest
        sentence += f": {exit_text}"
        remedy = remedies.find_for_exit(last.code, last.reason, "") or remedy
    evidence = [
        findings.Evidence(findings.EvidenceSource.OPERATOR, f"restarts: {_count_restarts(status)}"),
        *endings.list_exits(facts),
        *findings.describe_lines(facts),
    ]
    kind = findings.FindingKind.STARTING if holdup is None else findings.FindingKind.SLOW
    return findings.Diagnosis(kind, sentence, remedy, tuple(evidence))


def describe_progress(report: job_status.ProgressStatus) -> str:
    """Return the text of a report."""
    total = "" if report.total_steps is None else f" of {report.total_steps}"
    parts = [f"step {report.step}{total}"]
    parts += [f"loss {report.metrics['loss']}"] if "loss" in report.metrics else []
    parts += [f"{report.examples_per_second} examples/s"] if report.examples_per_second else []
    parts += [f"{report.eta} to go"] if report.eta else []
    return ", ".join(parts)


def _list_evidence_of_slowness(facts: findings.JobSnapshot) -> Iterator[findings.Evidence]:
    running = facts.find_true(names.ConditionType.RUNNING)
    if running is not None:
        yield findings.describe_condition(running, facts)
    reported_at, report = slowness.find_report_time(facts.status), facts.status.progress
    if reported_at is not None and report is not None:
        text = f"{describe_progress(report)}, reported {facts.age(reported_at)} ago"
        yield findings.Evidence(findings.EvidenceSource.PROGRESS, text)
        yield from _describe_input_wait(report)
    placement = facts.status.placement
    for stage in () if placement is None else placement.stages:
        if stage.busy_seconds:
            where = f"stage {stage.stage} ({stage.layers}) on {', '.join(stage.devices)}"
            text = f"{where}: busy {stage.busy_seconds} s"
            yield findings.Evidence(findings.EvidenceSource.PROGRESS, text)
    yield from findings.describe_lines(facts)


def _not_scaled(facts: findings.JobSnapshot) -> findings.Diagnosis | None:
    """An autoscaler with the job's name reports that it cannot scale."""
    autoscaler = f"horizontalpodautoscaler/{facts.job.name}"
    warnings = [
        event
        for event in facts.events
        if event.object == autoscaler
        and event.type == "Warning"
        and (facts.now - event.time).total_seconds() < _AUTOSCALER_SECONDS
    ]
    if not warnings:
        return None
    last = warnings[-1]
    sentence = f"{facts.job.name} trains, and its autoscaler cannot scale it:"
    message = remedies.shorten(last.message)
    remedy = remedies.find(last.message) or (
        f"See what it reports: `kubectl describe hpa {facts.job.name}`."
    )
    event = findings.Evidence(
        findings.EvidenceSource.EVENT, f"{last.reason} {facts.age(last.time)} ago"
    )
    return findings.Diagnosis(
        findings.FindingKind.TRAINING, f"{sentence} {message}", remedy, (event,)
    )


def _list_evidence_of_training(
    report: job_status.ProgressStatus, status: job_status.JobStatus
) -> Iterator[findings.Evidence]:
    yield from _describe_input_wait(report)
    if status.verification is not None:
        yield findings.Evidence(findings.EvidenceSource.PROGRESS, status.verification.sentence)
    workers = status.replicas.get(types.Role.WORKER.value)
    trains_in_step = status.strategy == types.Strategy.MULTI_WORKER_MIRRORED
    if trains_in_step and workers is not None and workers.running:
        text = "all replicas take each step together, and none is named as a straggler"
        yield findings.Evidence(findings.EvidenceSource.PROGRESS, text)
    if status.restart_causes:
        text = f"restarts: {_count_restarts(status)}"
        yield findings.Evidence(findings.EvidenceSource.OPERATOR, text)


def _count_restarts(status: job_status.JobStatus) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in status.restart_causes.items())


def _describe_input_wait(report: job_status.ProgressStatus) -> Iterator[findings.Evidence]:
    share = slowness.parse_number(report.input_wait)
    if share is not None:
        text = f"the coordinator waits for its input {share:.0%} of the time"
        yield findings.Evidence(findings.EvidenceSource.PROGRESS, text)
