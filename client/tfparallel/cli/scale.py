"""`tfparallel scale`."""

import click

from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.cli import options


@click.command("scale")
@options.job_name
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    required=True,
    metavar="NUMBER",
    help="Workers of the job from now on.",
)
@options.cluster
def command(name: str, *, workers: int, choice: access.ConnectionOptions) -> None:
    """Change the number of workers of a job.

    The job has to have spec.tfReplicaSpecs.Worker.maxReplicas or minReplicas, which are the bounds.
    With a synchronous strategy it restarts from its last checkpoint.

    Exit status: 0 done, 1 the job has ended or the cluster refuses, 2 no such job or no workers.
    """

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        await cluster.scale_job(name, workers)

    options.on_cluster(choice, act)
    click.echo(f"{name} scaled to {workers} {'worker' if workers == 1 else 'workers'}")
