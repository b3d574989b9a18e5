"""`tfparallel status`."""

import click

from tfparallel import models
from tfparallel.backend import Backend
from tfparallel.backends.cluster import access
from tfparallel.backends.cluster.cluster_backend import ClusterBackend
from tfparallel.cli import complete, listing, options
from tfparallel.terminal import display, job_tables


@click.command("status")
@click.argument(
    "name",
    metavar="[JOB|FOLDER]",
    required=False,
    shell_complete=complete.jobs_or_folders,
    callback=options.bare_names,
)
@click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="List the jobs of all namespaces."
)
@click.option("-w", "--watch", is_flag=True, help="Print a line at each change, until it ends.")
@options.output_format
@options.cluster
def command(
    name: str | None,
    *,
    everywhere: bool,
    watch: bool,
    output_format: str,
    choice: access.ConnectionOptions,
) -> None:
    """List the jobs of a cluster, or show one.

    Of one job it shows progress, replicas, conditions and the latest events. FOLDER is that of a
    local run, such as runs/JOB.

    Exit status: 0 shown, 1 the cluster refuses or does not answer, 2 no such job.
    """
    if watch and name is None:
        raise click.UsageError(
            "--watch follows one job: give its name, or follow all with `tfparallel get jobs -w`"
        )
    if everywhere and name is not None:
        raise click.UsageError("JOB names a job of one namespace: leave it out, or -A")

    async def act(cluster: ClusterBackend) -> None:
        listed = await cluster.list_jobs(everywhere=everywhere)
        listing.show(listed, output_format, None if everywhere else cluster.namespace)
        if output_format in listing.TABLES:
            await listing.note_absence(cluster, listed)

    async def act_on_one(backend: Backend) -> None:
        if watch:
            await _follow(backend, str(name), output_format)
        else:
            await _show(backend, str(name), output_format)

    if name is None:
        options.on_cluster(choice, act)
    else:
        options.on_job_or_folder(name, choice, act_on_one)


async def _show(backend: Backend, name: str, output_format: str) -> None:
    job = await backend.get_job(name)
    if output_format not in listing.TABLES:
        job_tables.print_objects([job], output_format, single=True)
        return
    out, _ = display.consoles()
    replicas, events = await backend.list_replicas(job), await backend.list_events(job)
    job_tables.show(out, job, replicas, events)
    await listing.note_absence(backend, [job])


async def _follow(backend: Backend, name: str, output_format: str) -> None:
    out, _ = display.consoles()
    last = ""
    async for job in backend.watch_job(name):
        if output_format in listing.TABLES:
            if (line := _line(job)) != last:
                last = line
                display.print_line(out, line)
        else:
            job_tables.print_objects([job], output_format, single=True)
        if job.is_finished:
            return


def _line(job: models.Job) -> str:
    progress = "" if job.status.progress is None else display.sentence(job.status.progress)
    return f"{job.name}  {job.state}  {job.status.ready}  {progress}".rstrip()
