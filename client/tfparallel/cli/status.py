"""`tfparallel status`."""

from collections.abc import Sequence

import click

from tfparallel import models
from tfparallel.cli import options
from tfparallel.cluster import access, backend
from tfparallel.terminal import display
from tfparallel.terminal import status as terminal
from tfparallel_operator import wall_clock


@click.command("status")
@click.argument("name", metavar="[JOB]", required=False)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="List jobs of all.")
@click.option("-w", "--watch", is_flag=True, help="Print a line at each change, until it ends.")
@options.output_format
@options.cluster
def command(
    name: str | None, *, everywhere: bool, watch: bool, output_format: str, choice: access.Choice
) -> None:
    """List the jobs of a cluster, or show one.

    Of one job it shows progress, replicas, conditions and the latest events.

    Exit status: 0 shown, 1 the cluster refuses or does not answer, 2 no such job.
    """
    if watch and name is None:
        raise click.UsageError("--watch follows one job: give its name")

    async def act(cluster: backend.ClusterBackend) -> None:
        if name is None:
            jobs = await cluster.list_jobs(everywhere=everywhere)
            _print_jobs(jobs, cluster, output_format, everywhere=everywhere)
        elif watch:
            await _follow(cluster, name, output_format)
        else:
            await _show(cluster, name, output_format)

    options.on_cluster(choice, act)


def _print_jobs(
    jobs: Sequence[models.Job],
    cluster: backend.ClusterBackend,
    output_format: str,
    *,
    everywhere: bool,
) -> None:
    if output_format not in (options.Format.TABLE, options.Format.WIDE):
        terminal.print_objects(jobs, output_format, single=False)
    elif not jobs:
        where = "any namespace" if everywhere else f"namespace {cluster.namespace!r}"
        click.echo(
            f"There are no jobs in {where}; submit one: tfparallel submit job.yaml", err=True
        )
    else:
        wide = output_format == options.Format.WIDE
        out, _ = display.consoles()
        out.print(terminal.jobs_table(jobs, wall_clock.utc_now(), everywhere=everywhere, wide=wide))


async def _show(cluster: backend.ClusterBackend, name: str, output_format: str) -> None:
    job = await cluster.get_job(name)
    if output_format not in (options.Format.TABLE, options.Format.WIDE):
        terminal.print_objects([job], output_format, single=True)
        return
    out, _ = display.consoles()
    replicas, events = await cluster.list_replicas(job), await cluster.list_events(job)
    terminal.show(out, job, replicas, events)


async def _follow(cluster: backend.ClusterBackend, name: str, output_format: str) -> None:
    out, _ = display.consoles()
    async for job in cluster.watch_job(name):
        if output_format in (options.Format.TABLE, options.Format.WIDE):
            out.print(_line(job), soft_wrap=True)
        else:
            terminal.print_objects([job], output_format, single=True)
        if job.is_finished:
            return


def _line(job: models.Job) -> str:
    progress = "" if job.status.progress is None else display.sentence(job.status.progress)
    return f"{job.name}  {job.state}  {job.status.ready}  {progress}".rstrip()
