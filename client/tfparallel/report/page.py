"""The report as one page of HTML, which needs neither network nor scripts."""

import dataclasses
import datetime
import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2
import yaml

from tfparallel.drawing import svg
from tfparallel.planning import plan_tables
from tfparallel.report import content, mesh, report_pictures, run_records, timeline
from tfparallel.terminal import activities
from tfparallel_operator.api import types
from tfparallel_trainer.contract import plain_text, plan

SHOWN_METRICS = 12
SHOWN_PODS = 60

_HIDDEN = "(left out)"


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page."""

    key: str
    """In addresses."""
    title: str
    sentences: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    lines: Sequence[str] = ()
    """Of a log."""
    figures: Sequence[Callable[[], report_pictures.Figure]] = ()
    """Each draws one."""
    tables: Sequence[Table] = ()
    text: str = ""
    text_title: str = ""


def render(run: run_records.RunRecords, now: datetime.datetime) -> str:
    """Return the page about a run."""
    figures = content.make(run)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfparallel.report", "."),
        autoescape=True,
        finalize=_show_controls,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html.jinja").render(
        content=figures,
        goodput="" if figures.goodput is None else activities.describe(figures.goodput),
        sections=[
            *_log(run),
            _what_ran(run, figures),
            _training(run, figures),
            _speed(run, figures),
            _time(run, figures),
            *_staleness(run, figures),
            *_pipeline(run),
        ],
        note="" if svg.is_available() else f"This page has no pictures: {svg.MISSING}.",
        version=importlib.metadata.version("tfparallel"),
        written=f"{now:%Y-%m-%d %H:%M %Z}",
    )


def _log(run: run_records.RunRecords) -> Iterator[Section]:
    if run.log is not None:
        yield Section(
            key="log",
            title=f"Last lines of {run.log.replica}",
            sentences=[f"All lines: {run.log.source}"],
            lines=run.log.lines,
        )


def _no_step(run: run_records.RunRecords) -> str:
    is_over = run.job.is_finished or run.is_cut_off
    return run.missing_results or f"The run has recorded no step{'' if is_over else ' yet'}."


def _show_controls(value: object) -> object:
    """Return text, or a picture, without characters that would turn or hide the page's text."""
    if isinstance(value, str):
        return type(value)(plain_text.escape(value, keep="\n\t"))  # Markup stays markup.
    return value


def _what_ran(run: run_records.RunRecords, figures: content.Content) -> Section:
    devices = mesh.find(run)
    drawn = [] if devices is None else [functools.partial(report_pictures.placement, devices)]
    if run.stages is not None and run.stages.planned is not None:
        drawn.append(functools.partial(report_pictures.planned_memory, run.stages.planned))
    manifest = {key: value for key, value in run.job.manifest.items() if key != "status"}
    has_spec = bool(manifest.get("spec"))
    sentences = [] if has_spec else ["The folder holds no manifest: an older version wrote it."]
    sentences += [] if devices is None else [mesh.explain(devices)]
    return Section(
        key="what",
        title="What ran",
        sentences=sentences,
        facts=figures.facts,
        figures=drawn,
        tables=[_replicas(run)] if run.pods else [],
        text=yaml.safe_dump(_without_values(manifest), sort_keys=False) if has_spec else "",
        text_title="Manifest (values of variables are left out)",
    )


def _replicas(run: run_records.RunRecords) -> Table:
    newest = {pod.replica: pod for pod in run.pods}
    rows = [
        [pod.replica, pod.node or "this machine", pod.pod, str(pod.attempt), pod.outcome or "runs"]
        for pod in newest.values()
    ]
    more = len(rows) - SHOWN_PODS
    title = "Pods and nodes" + (f", {more} more are left out" if more > 0 else "")
    return Table(title, ("replica", "node", "pod", "attempt", "outcome"), rows[:SHOWN_PODS])


def _training(run: run_records.RunRecords, figures: content.Content) -> Section:
    sentences = []
    if not figures.metrics:
        sentences.append(_no_step(run))
        report = run.job.status.progress
        if report is not None and report.metrics:
            last = ", ".join(f"{name} {value}" for name, value in report.metrics.items())
            sentences.append(f"Last report: {last}.")
    if len(figures.metrics) > SHOWN_METRICS:
        hidden = ", ".join(metric.name for metric in figures.metrics[SHOWN_METRICS:])
        sentences.append(f"Metrics that are left out: {hidden}. TensorBoard shows all.")
    return Section(
        key="training",
        title="Loss and metrics",
        sentences=sentences,
        figures=[
            functools.partial(report_pictures.metric, metric)
            for metric in figures.metrics[:SHOWN_METRICS]
        ],
    )


def _speed(run: run_records.RunRecords, figures: content.Content) -> Section:
    sentences: list[str] = []
    drawn: list[Callable[[], report_pictures.Figure]] = []
    end = figures.chronology.length
    if figures.throughput is not None:
        drawn.append(functools.partial(report_pictures.throughput, figures.throughput, end))
    if figures.input_wait is not None:
        drawn.append(functools.partial(report_pictures.input_wait, figures.input_wait, end))
    if figures.memory is not None:
        drawn.append(
            functools.partial(report_pictures.memory, figures.memory, end, figures.memory_limit)
        )
        if run.is_local:
            sentences.append("On this machine, the memory has no limit: those of pods do not hold.")
        elif figures.memory_limit is None:
            sentences.append("The memory has no limit: the job's template sets none.")
    elif run.records:
        sentences.append("Memory is missing: an older version of the trainer did not record it.")
    if not run.records:
        sentences.append(_no_step(run))
    sentences += figures.stragglers
    return Section(
        key="speed", title="Throughput, input, memory", sentences=sentences, figures=drawn
    )


def _time(run: run_records.RunRecords, figures: content.Content) -> Section:
    rows = [
        [
            str(attempt.number),
            content.duration(attempt.began),
            _optional_duration(attempt.start_seconds),
            attempt.steps,
            content.duration(attempt.ended),
            attempt.cause,
            _optional_duration(attempt.lost),
        ]
        for attempt in figures.attempts
    ]
    has_lasted = figures.chronology.length > 0
    drawn = [functools.partial(timeline.picture, figures)]
    if figures.goodput is not None and figures.goodput.age:
        drawn.append(functools.partial(timeline.shares, figures.goodput))
    columns = ("start", "at", "until the first step", "steps", "ended at", "because", "lost time")
    return Section(
        key="time",
        title="Where the time went",
        sentences=list(_missing(run, figures)),
        figures=drawn if has_lasted else [],
        tables=[Table("Starts of training", columns, rows)] if rows else [],
    )


def _missing(run: run_records.RunRecords, figures: content.Content) -> Iterator[str]:
    """Yield what the timeline lacks."""
    if run.records and not any(record.is_first_step for record in run.records):
        yield (
            "An older version of the trainer did not record when its processes started: starts are"
            " those of the events."
        )
    if run.job.status.attempt and not run.events:
        yield "The job's Events are gone: by default, a cluster drops them after an hour."
    if not run.pods:
        yield "When pods started and ended is not on record."
    elif numbers := figures.attempts_without_pods:
        yield f"Attempts whose pods and their Events are gone: {', '.join(map(str, numbers))}."
    if len(figures.pods) > len(run.pods):
        yield "Bars of processes whose pods are gone are those of the coordinator's train log."


def _optional_duration(seconds: float | None) -> str:
    return "-" if seconds is None else content.duration(seconds)


def _staleness(run: run_records.RunRecords, figures: content.Content) -> Iterator[Section]:
    if figures.staleness:
        sentence = (
            "How many updates of other workers came between reading the weights and applying a"
            " gradient."
        )
        yield Section(
            key="staleness",
            title="Staleness",
            sentences=[sentence],
            figures=[functools.partial(report_pictures.staleness, figures.staleness)],
        )
    elif run.job.status.strategy == types.Strategy.PARAMETER_SERVER:
        sentence = "Staleness is missing: a script or an older version of the trainer ran."
        yield Section(key="staleness", title="Staleness", sentences=[sentence])


def _pipeline(run: run_records.RunRecords) -> Iterator[Section]:
    if run.stages is not None:
        yield Section(
            key="pipeline",
            title="Pipeline",
            sentences=[f"Stages {plan_tables.waiting(run.stages)}.", *_expectation(run.stages)],
            figures=[
                functools.partial(report_pictures.schedule, run.stages),
                functools.partial(report_pictures.stage_shares, run.stages),
            ],
        )
    elif run.job.status.strategy == types.Strategy.MODEL_SPLIT:
        sentence = "The schedule is missing: the trainer writes it when the job succeeds."
        yield Section(key="pipeline", title="Pipeline", sentences=[sentence])


def _expectation(stages: plan.Pipeline) -> Iterator[str]:
    if stages.placement.reasons:
        yield f"The planner expected: {' '.join(stages.placement.reasons)}"


def _without_values(manifest: Any) -> Any:
    """Return a manifest without the values of variables: people pass the page on."""
    if isinstance(manifest, Mapping):
        return {
            key: [
                {**variable, "value": _HIDDEN} if "value" in variable else variable
                for variable in value
            ]
            if key == "env" and isinstance(value, list)
            else _without_values(value)
            for key, value in manifest.items()
        }
    if isinstance(manifest, list):
        return [_without_values(value) for value in manifest]
    return manifest
