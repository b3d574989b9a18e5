"""Jobs as `status` and `get job` list them."""

from collections.abc import AsyncIterator, Sequence

import click

from tfparallel import models
from tfparallel.backend import Backend
from tfparallel.cli import options
from tfparallel.diagnosis import no_operator
from tfparallel.terminal import display, job_tables, wrapping
from tfparallel_operator import wall_clock

TABLES = (options.Format.TABLE, options.Format.WIDE)
_WIDE_COLUMNS = 160
"""Width of a wide table. A narrower terminal wraps it, as it wraps kubectl's."""


def show(
    jobs: Sequence[models.Job], output_format: str, namespace: str | None, *, single: bool = False
) -> None:
    """Print jobs.

    Args:
        jobs: in the order in which they are printed.
        output_format: one of `options.Format`.
        namespace: of the jobs; None: all namespaces.
        single: whether json and yaml are those of the one job, not of a list.
    """
    if output_format not in TABLES:
        job_tables.print_objects(jobs, output_format, single=single)
    elif not jobs:
        where = "any namespace" if namespace is None else f"namespace {namespace!r}"
        click.echo(
            f"There are no jobs in {where}; submit one: tfparallel submit job.yaml", err=True
        )
    else:
        wide = output_format == options.Format.WIDE
        out, _ = display.consoles()
        table = job_tables.jobs_table(
            jobs, wall_clock.utc_now(), everywhere=namespace is None, wide=wide
        )
        if wide:
            out.width = max(out.width, _WIDE_COLUMNS)
        out.print(table)


async def note_absence(backend: Backend, jobs: Sequence[models.Job]) -> None:
    """If no operator runs for jobs that have not ended, say so on standard error."""
    pending = [job for job in jobs if not job.is_finished and not job.other_manager]
    namespaces = sorted({job.namespace for job in pending})
    operators = await backend.list_operators() if namespaces else None
    for namespace in namespaces:
        absence = no_operator.explain_absence(operators, namespace)
        if absence is not None:
            reason, remedy = absence
            wrapping.say(f"note: no operator acts on jobs in {namespace!r}: {reason}. {remedy}")
            return


async def follow(
    changes: AsyncIterator[models.Job], output_format: str, *, everywhere: bool
) -> None:
    """Print a line at each change of a job, or the whole object."""
    out, _ = display.consoles()
    wide = output_format == options.Format.WIDE
    widths: tuple[int, ...] = ()
    async for job in changes:
        if output_format not in TABLES:
            job_tables.print_objects([job], output_format, single=True)
            continue
        rows = [job_tables.cells(job, wall_clock.utc_now(), everywhere=everywhere, wide=wide)]
        if not widths:
            rows.insert(0, job_tables.columns(everywhere=everywhere, wide=wide))
            widths = tuple(max(map(len, column)) for column in zip(*rows, strict=True))
        for row in rows:
            padded = map(str.ljust, row, widths)
            out.print("  ".join(padded).rstrip(), soft_wrap=True)
