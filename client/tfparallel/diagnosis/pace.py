"""Training that runs: whether it has stalled, what keeps it slow, and who cannot scale it. Pure."""

import statistics
from collections.abc import Iterator

from tfparallel.diagnosis import findings
from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import remedies
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import progress

SILENT_SECONDS = 60.0
"""Twelve times as long as the coordinator pauses between two reports."""

_AUTOSCALER_SECONDS = 360.0
"""An autoscaler that fails reports it every 15 seconds; its Events come every five minutes then."""

_STRAGGLES = 1.5
"""Times the work of the median stage that makes a stage a straggler."""


def diagnose_pace(facts: findings.Facts) -> findings.Diagnosis:
    """Say how training gets on."""
    return (
        _not_reporting(facts)
        or _silent(facts)
        or _waits_for_input(facts)
        or _straggler(facts)
        or _not_scaled(facts)
        or _training(facts)
    )


def describe_progress(report: job_status.ProgressStatus) -> str:
    """Return a report in words."""
    total = "" if report.total_steps is None else f" of {report.total_steps}"
    parts = [f"step {report.step}{total}"]
    parts += [f"loss {report.metrics['loss']}"] if "loss" in report.metrics else []
    parts += [f"{report.examples_per_second} examples/s"] if report.examples_per_second else []
    parts += [f"{report.eta} to go"] if report.eta else []
    return ", ".join(parts)


def _not_reporting(facts: findings.Facts) -> findings.Diagnosis | None:
    """The attempt has reported nothing yet."""
    name, report = facts.job.name, facts.status.progress
    began = facts.status.attempt_time or facts.status.start_time
    reported = None if report is None else report.last_update_time
    if reported is not None and (began is None or reported > began):
        return None
    running = conditions.find(facts.status, names.Condition.RUNNING)
    since = running.last_transition_time if running is not None else facts.now
    age = facts.age(since)
    lines = tuple(findings.describe_lines(facts))
    if "trainer" not in facts.job.manifest.get("spec", {}):
        sentence = f"{name} has run its own command for {age}, which reports no progress"
        remedy = f"Read its log: `tfparallel logs {name} --all`."
        return findings.Diagnosis(findings.Kind.TRAINING, sentence, remedy, lines)
    if (facts.now - since).total_seconds() < SILENT_SECONDS:
        sentence = f"{name} starts: its replicas have run for {age}, and no step has ended yet"
        return findings.Diagnosis(findings.Kind.STARTING, sentence, "Wait a moment.", lines)
    sentence = (
        f"{name} is slow to start: its replicas have run for {age}, and no step has ended yet"
    )
    remedy = (
        "See what the coordinator does: it loads data, builds the graph of the first step, or waits"
        f" for a peer. `tfparallel logs {name} -f` follows it."
    )
    return findings.Diagnosis(findings.Kind.SLOW, sentence, remedy, lines)


def _silent(facts: findings.Facts) -> findings.Diagnosis | None:
    """Reports came, and come no longer."""
    report = facts.status.progress
    if report is None or report.last_update_time is None:
        return None
    if (facts.now - report.last_update_time).total_seconds() < SILENT_SECONDS:
        return None
    age = facts.age(report.last_update_time)
    sentence = f"{facts.job.name} is slow: it has reported nothing for {age}, since step"
    remedy = (
        "See whether a step, an evaluation or a checkpoint takes so long: `tfparallel logs"
        f" {facts.job.name}`. Set runPolicy.stallDeadlineSeconds to have a hung job restarted."
    )
    evidence = (_progress(report), *findings.describe_lines(facts))
    return findings.Diagnosis(findings.Kind.SLOW, f"{sentence} {report.step}", remedy, evidence)


def _waits_for_input(facts: findings.Facts) -> findings.Diagnosis | None:
    report = facts.status.progress
    if report is None or report.input_wait is None:
        return None
    share = float(report.input_wait)
    if share <= progress.MAX_INPUT_WAIT:
        return None
    sentence = f"{facts.job.name} is slow: it waits for its input {share:.0%} of the time"
    remedy = (
        "Do less for each example, in parallel (num_parallel_calls) or once (cache), or raise"
        " resources.requests.cpu of the replicas."
    )
    return findings.Diagnosis(findings.Kind.SLOW, sentence, remedy, (_progress(report),))


def _straggler(facts: findings.Facts) -> findings.Diagnosis | None:
    """One stage of a split model computes for much longer than the others."""
    placement = facts.status.placement
    stages = [] if placement is None else [s for s in placement.stages if s.busy_seconds]
    if len(stages) < 2:
        return None
    slowest = max(stages, key=lambda stage: float(stage.busy_seconds or 0))
    busy = float(slowest.busy_seconds or 0)
    others = [float(s.busy_seconds or 0) for s in stages if s is not slowest]
    usual = statistics.median(others)
    if busy <= _STRAGGLES * usual:
        return None
    where = ", ".join(slowest.devices)
    sentence = (
        f"{facts.job.name} is slow: stage {slowest.stage} on {where} computes {busy:.3g} s of a"
        f" step, the other stages {usual:.3g} s, and they wait for it"
    )
    remedy = (
        "Divide the layers more evenly: remove mesh.cuts so that the planner does, or move a cut."
        " If the division is even, look at the load of that node."
    )
    evidence = tuple(
        findings.Evidence(
            findings.Source.PROGRESS,
            f"stage {stage.stage} ({stage.layers}) on {', '.join(stage.devices)}: busy"
            f" {stage.busy_seconds} s",
        )
        for stage in stages
    )
    return findings.Diagnosis(findings.Kind.SLOW, sentence, remedy, evidence)


def _not_scaled(facts: findings.Facts) -> findings.Diagnosis | None:
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
    words = remedies.shorten(last.message)
    remedy = remedies.find(last.message) or (
        f"See what it reports: `kubectl describe hpa {facts.job.name}`."
    )
    event = findings.Evidence(findings.Source.EVENT, f"{last.reason} {facts.age(last.time)} ago")
    return findings.Diagnosis(findings.Kind.TRAINING, f"{sentence} {words}", remedy, (event,))


def _training(facts: findings.Facts) -> findings.Diagnosis:
    report = facts.status.progress
    words = "" if report is None else f": {describe_progress(report)}"
    sentence = f"{facts.job.name} trains, and nothing that it reports holds it up{words}"
    evidence = tuple(_list_evidence_of_pace(facts))
    return findings.Diagnosis(findings.Kind.TRAINING, sentence, "", evidence)


def _list_evidence_of_pace(facts: findings.Facts) -> Iterator[findings.Evidence]:
    report, causes = facts.status.progress, facts.status.restart_causes
    if report is not None and report.input_wait is not None:
        share = f"{float(report.input_wait):.0%}"
        yield findings.Evidence(
            findings.Source.PROGRESS, f"the coordinator waits for its input {share} of the time"
        )
    workers = facts.status.replicas.get(types.Role.WORKER.value)
    trains_in_step = facts.status.strategy == types.Strategy.MULTI_WORKER_MIRRORED
    if trains_in_step and workers is not None and workers.running:
        text = "all replicas take each step together, and report no times of their own"
        yield findings.Evidence(findings.Source.PROGRESS, text)
    if causes:
        restarts = ", ".join(f"{count} {cause}" for cause, count in causes.items())
        yield findings.Evidence(findings.Source.OPERATOR, f"restarts: {restarts}")


def _progress(report: job_status.ProgressStatus) -> findings.Evidence:
    return findings.Evidence(findings.Source.PROGRESS, describe_progress(report))
