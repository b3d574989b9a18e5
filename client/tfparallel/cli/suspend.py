"""`tfparallel suspend`."""

import click

from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.cli import options


@click.command("suspend")
@options.job_name
@options.cluster
def command(name: str, *, choice: access.ConnectionOptions) -> None:
    """Delete a job's replicas and keep the job.

    Its last checkpoint stays; `tfparallel resume` continues from there.

    Exit status: 0 done, 1 the job has ended or the cluster refuses, 2 no such job.
    """

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        await cluster.suspend_job(name, suspend=True)

    options.on_cluster(choice, act)
    click.echo(f"{name} suspended; resume it: tfparallel resume {name}")
