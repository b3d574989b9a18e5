"""Tables of jobs and events, on a screen of 80 columns and on a wide one."""

import dataclasses
import datetime
import io

import pytest
from rich import console as rich_console
from rich import table as rich_table

from tfparallel import models
from tfparallel.terminal import job_tables
from tfparallel_operator.api import job_status, names

_NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_PROGRESS = job_status.ProgressStatus(step=2, total_steps=4600, eta="10m20s", metrics={"loss": "2"})
_RUNNING = job_status.JobStatus(
    state=names.State.RUNNING, strategy="MultiWorkerMirrored", progress=_PROGRESS
)
_JOB = models.Job("digits", "team", "1", _NOW, _RUNNING, {})


def _lines(table: rich_table.Table, width: int) -> list[str]:
    file = io.StringIO()
    rich_console.Console(width=width, file=file, color_system=None).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_job_has_one_line_of_80_columns() -> None:
    table = job_tables.jobs_table([_JOB], _NOW, everywhere=True, wide=False)
    [_, line] = _lines(table, 80)
    assert line.startswith("team     digits  Running  Multi")
    assert " 2/4600 " in line


def test_only_a_job_that_runs_has_time_to_go() -> None:
    """One that is suspended would show that of its last report."""
    for state, shown in ((names.State.RUNNING, True), (names.State.SUSPENDED, False)):
        job = dataclasses.replace(_JOB, status=_RUNNING.model_copy(update={"state": state}))
        table = job_tables.jobs_table([job], _NOW, everywhere=False, wide=False)
        assert ("10m20s" in _lines(table, 120)[1]) == shown


@pytest.mark.parametrize(
    ("width", "heads", "line"),
    [
        (80, "REASON     MESSAGE", "Scheduled  pod/digits-chief-0: bound to node-1"),
        (120, "REASON     OBJECT              MESSAGE", "pod/digits-chief-0  bound to node-1"),
    ],
)
def test_an_event_names_its_object(width: int, heads: str, line: str) -> None:
    event = models.Event(_NOW, "Normal", "Scheduled", "pod/digits-chief-0", "bound to node-1")
    shown = _lines(job_tables.events_table([event], _NOW, width), width)
    assert shown[0].endswith(heads)
    assert shown[1].endswith(line)
