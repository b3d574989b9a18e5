"""`tfparallel resume`."""

import click

from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.cli import options


@click.command("resume")
@options.job_name
@options.cluster
def command(name: str, *, choice: access.ConnectionOptions) -> None:
    """Run a suspended job again, from its last checkpoint.

    Exit status: 0 done, 1 the job has ended or the cluster refuses, 2 no such job.
    """

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        await cluster.suspend_job(name, suspend=False)

    options.on_cluster(choice, act)
    click.echo(f"{name} resumed; follow it: tfparallel logs -f {name}")
