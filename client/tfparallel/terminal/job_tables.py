"""Jobs of a cluster as tables, and one job in detail."""

import datetime
import json
from collections.abc import Iterator, Sequence

import click
import yaml
from rich import console as rich_console
from rich import table as rich_table
from rich import text as rich_text

from tfparallel import models
from tfparallel.terminal import activities, ages, display, placement
from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.pods import avoided_nodes
from tfparallel_operator.core.status import goodput

STYLES = {
    names.State.RUNNING: "cyan",
    names.State.SUCCEEDED: "green",
    names.State.FAILED: "red",
    names.State.RESTARTING: "yellow",
    models.UNREADABLE: "yellow",
}
_COLUMNS = ("NAME", "STATE", "STRATEGY", "READY", "STEP", "LOSS", "ETA", "RESTARTS", "AGE")
_GIVES_WAY = ("NAMESPACE", "NAME", "STRATEGY", "MESSAGE")
"""Columns that become narrower where there is no room."""
_SHOWN_EVENTS = 5
_WIDE = 100
"""Columns of a terminal that has room for a column of objects."""


def plain_table(*columns: str) -> rich_table.Table:
    """Return a table in kubectl's manner: no lines, two spaces between columns."""
    return rich_table.Table(*columns, box=None, padding=(0, 2, 0, 0), header_style="")


def print_objects(jobs: Sequence[models.Job], output_format: str, *, single: bool) -> None:
    """Print manifests as json or yaml, or the names, as kubectl does."""
    if output_format == "name":
        for job in jobs:
            click.echo(f"{names.SINGULAR}.{names.GROUP}/{job.name}")
        return
    bodies = [dict(job.manifest) for job in jobs]
    document = bodies[0] if single else {"apiVersion": "v1", "kind": "List", "items": bodies}
    if output_format == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(yaml.safe_dump(document, sort_keys=False), nl=False)


def jobs_table(
    jobs: Sequence[models.Job], now: datetime.datetime, *, everywhere: bool, wide: bool
) -> rich_table.Table:
    """Return the table of jobs."""
    heads = columns(everywhere=everywhere, wide=wide)
    table = plain_table(*heads)
    for column in table.columns:
        column.no_wrap = column.header not in _GIVES_WAY
    for job in jobs:
        row = cells(job, now, everywhere=everywhere, wide=wide)
        table.add_row(*map(_cell, heads, row))
    return table


def columns(*, everywhere: bool, wide: bool) -> tuple[str, ...]:
    """Return the heads of the columns of the table of jobs."""
    leading = ("NAMESPACE",) if everywhere else ()
    return (*leading, *_COLUMNS, *(("MESSAGE",) if wide else ()))


def cells(
    job: models.Job, now: datetime.datetime, *, everywhere: bool, wide: bool
) -> tuple[str, ...]:
    """Return the row of a job in the table of jobs."""
    leading = (job.namespace,) if everywhere else ()
    return (*leading, *_cells(job, now), *((_message(job),) if wide else ()))


def _cell(head: str, value: str) -> rich_text.Text:
    if head == "STRATEGY":
        return rich_text.Text(value, overflow="ellipsis", no_wrap=True)
    style = STYLES.get(value, "")
    return rich_text.Text(value, style, overflow="fold")


def _cells(job: models.Job, now: datetime.datetime) -> Iterator[str]:
    status, progress = job.status, job.status.progress
    yield job.name
    yield job.state
    yield status.strategy
    yield status.ready
    total = f"/{progress.total_steps}" if progress and progress.total_steps else ""
    yield "" if progress is None else f"{progress.step}{total}"
    yield "" if progress is None else display.short(progress.metrics.get("loss", ""))
    yield (progress.eta or "") if progress and job.state == names.State.RUNNING else ""
    yield str(status.restarts.failure + status.restarts.disruption)
    yield ages.age(job.created, now)


def _message(job: models.Job) -> str:
    """Return the message of the condition that the state follows from, or why there is none."""
    if job.problem:
        return job.problem
    named = {condition.type: condition for condition in job.status.conditions}
    condition = named.get(job.state)
    return "" if condition is None else condition.message


def show(
    out: rich_console.Console,
    job: models.Job,
    replicas: Sequence[models.Replica],
    events: Sequence[models.Event],
) -> None:
    """Print one job in detail."""
    now = wall_clock.utc_now()
    headline = rich_text.Text(f"{job.name}: ")
    has_state = job.status.state is not None
    headline.append(
        job.state if has_state else "not seen by the operator yet",
        STYLES.get(job.state, ""),
    )
    out.print(headline, soft_wrap=True)
    rows = rich_table.Table.grid(padding=(0, 2))
    for field, value in _facts(job, now):
        rows.add_row(f"  {field}", rich_text.Text(value, overflow="fold"))
    out.print(rows)
    for table in (_roles(job.status), _replicas(replicas, now)):
        if table.row_count:
            out.print()
            out.print(table)
    if job.status.placement is not None:
        out.print()
        out.print(placement.headline(job.status.placement), soft_wrap=True)
        out.print(placement.table(job.status.placement))
    if events:
        out.print()
        out.print(events_table(events[-_SHOWN_EVENTS:], now, out.width))


def _facts(job: models.Job, now: datetime.datetime) -> Iterator[tuple[str, str]]:
    status = job.status
    yield "namespace", job.namespace
    if status.strategy:
        yield "strategy", status.strategy
    if status.attempt:
        counts = status.restarts
        yield (
            "attempt",
            f"{status.attempt} (after {counts.failure} failures, {counts.disruption} disruptions)",
        )
        if status.restart_causes:
            causes = (f"{count} {cause}" for cause, count in status.restart_causes.items())
            yield "restarts", ", ".join(causes)
    if status.node_losses:
        yield "node losses", avoided_nodes.describe(status)
    if status.progress is not None:
        progress = status.progress
        if job.state != names.State.RUNNING:
            progress = progress.model_copy(update={"eta": None})
        yield "progress", display.sentence(progress)
    if (measured := goodput.measure(status, now)) is not None and measured.age:
        yield "goodput", activities.describe(measured)
    if status.verification is not None:
        yield "verified", status.verification.sentence
    for condition in status.conditions:
        if condition.status is job_status.Truth.TRUE:
            yield condition.type.lower(), f"{condition.reason}: {condition.message}"


def _roles(status: job_status.JobStatus) -> rich_table.Table:
    table = plain_table("ROLE", "DESIRED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "WHY")
    for role, counts in status.replicas.items():
        last = counts.last_exit
        exit_words = "" if last is None else f"{last.replica} exited {last.code} {last.reason}"
        numbers = (counts.desired, counts.pending, counts.running, counts.succeeded, counts.failed)
        table.add_row(role, *map(str, numbers), counts.reason or exit_words.rstrip())
    return table


def _replicas(replicas: Sequence[models.Replica], now: datetime.datetime) -> rich_table.Table:
    table = plain_table("REPLICA", "PHASE", "ATTEMPT", "NODE", "AGE", "REASON")
    for replica in replicas:
        ended = "" if replica.exit_code is None else f"exit {replica.exit_code} "
        table.add_row(
            replica.name,
            replica.phase,
            str(replica.attempt),
            replica.node,
            ages.age(replica.created, now),
            f"{ended}{replica.reason}",
        )
    return table


def events_table(
    events: Sequence[models.Event], now: datetime.datetime, width: int
) -> rich_table.Table:
    """Return events in kubectl's manner, oldest first; a narrow table has one column for two."""
    is_narrow = width < _WIDE
    table = plain_table("AGE", "TYPE", "REASON", *(() if is_narrow else ("OBJECT",)), "MESSAGE")
    for event in events:
        often = f" (x{event.count})" if event.count > 1 else ""
        cells = (ages.age(event.time, now) + often, event.type, event.reason)
        about = (
            (f"{event.object}: {event.message}",) if is_narrow else (event.object, event.message)
        )
        style = "yellow" if event.type == "Warning" else ""
        table.add_row(
            *(rich_text.Text(cell, style) for cell in cells),
            *(rich_text.Text(cell, overflow="fold") for cell in about),
        )
    return table
