"""`tfparallel delete`."""

from collections.abc import Sequence

import click

from tfparallel import errors
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.cli import complete, options
from tfparallel_operator.api import load


@click.command("delete")
@click.argument(
    "job_names",
    metavar="JOB...",
    nargs=-1,
    required=True,
    shell_complete=complete.jobs,
    callback=options.bare_names,
)
@options.cluster
def command(job_names: Sequence[str], *, choice: access.ConnectionOptions) -> None:
    """Delete jobs with their pods and other objects.

    Claims stay, with checkpoints and models, unless the job says otherwise.

    Exit status: 0 deleted, 1 the cluster refuses or does not answer, 2 no such job; the others
    are deleted.
    """

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        problems: list[str] = []
        for name in job_names:
            try:
                await cluster.delete_job(name)
            except errors.JobNotFound as error:
                problems += error.problems
            else:
                click.echo(f"{name} deleted")
        if problems:
            raise load.SpecError(*problems)

    options.on_cluster(choice, act)
