"""`tfparallel events`."""

import click

from tfparallel.cli import options
from tfparallel.cluster import access, backend
from tfparallel.terminal import display, wrapping
from tfparallel.terminal import status as terminal
from tfparallel_operator import wall_clock


@click.command("events")
@options.job_name
@options.cluster
def command(name: str, *, choice: access.Choice) -> None:
    """Show the events of a job and its pods, oldest first.

    Kubernetes keeps events for an hour.

    Exit status: 0 shown, 1 the cluster refuses or does not answer, 2 no such job.
    """

    async def act(cluster: backend.ClusterBackend) -> None:
        events = await cluster.list_events(await cluster.get_job(name))
        if not events:
            wrapping.say(f"no events of {name}: Kubernetes keeps them for an hour")
            return
        out, _ = display.consoles()
        out.print(terminal.events_table(events, wall_clock.utc_now(), out.width))

    options.on_cluster(choice, act)
