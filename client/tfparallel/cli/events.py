"""`tfparallel events`."""

import click

from tfparallel import backend
from tfparallel.backends.cluster import access
from tfparallel.cli import options
from tfparallel.terminal import display, job_tables, wrapping
from tfparallel_operator import wall_clock


@click.command("events")
@options.job_or_folder
@options.cluster
def command(name: str, *, choice: access.ConnectionOptions) -> None:
    """Show the events of a job and its pods, oldest first.

    Kubernetes keeps events for an hour, the FOLDER of a local run forever.

    Exit status: 0 shown, 1 the cluster refuses or does not answer, 2 no such job.
    """

    async def act(jobs: backend.Backend) -> None:
        events = await jobs.list_events(await jobs.get_job(name))
        if not events:
            wrapping.say(f"no events of {name}: Kubernetes keeps them for an hour")
            return
        out, _ = display.consoles()
        out.print(job_tables.events_table(events, wall_clock.utc_now(), out.width))

    options.on_job_or_folder(name, choice, act)
