"""`tfparallel logs`."""

import click

from tfparallel import backend, replica_logs
from tfparallel.backends.cluster import access
from tfparallel.cli import complete, options
from tfparallel.terminal import display


@click.command("logs")
@options.job_or_folder
@click.argument("replica", metavar="[REPLICA]", required=False, shell_complete=complete.replicas)
@click.option(
    "-f", "--follow", is_flag=True, help="Follow the log until the job ends, also over restarts."
)
@click.option("--all", "everyone", is_flag=True, help="Show all replicas, each line with its name.")
@click.option(
    "--tail", type=click.IntRange(min=0), metavar="LINES", help="Show the last lines only."
)
@options.cluster
def command(
    name: str,
    replica: str | None,
    *,
    follow: bool,
    everyone: bool,
    tail: int | None,
    choice: access.ConnectionOptions,
) -> None:
    """Show what a replica wrote, such as worker-1.

    By default, it shows the coordinator: the chief, or worker 0. If the job failed, it shows the
    replica that failed first, or the next one whose log still exists.

    FOLDER is the folder of a local run, such as runs/JOB.

    Exit status: 0 shown, 1 the cluster refuses or does not answer, 2 no such job or replica.
    """
    if everyone and replica is not None:
        raise click.UsageError(f"--all shows every replica: leave out {replica!r}, or --all")

    async def act(jobs: backend.Backend) -> None:
        job = await jobs.get_job(name)
        chosen = replica_logs.ALL_REPLICAS if everyone else replica
        usual = replica or job.coordinator
        out, err = display.consoles()
        async for line in replica_logs.read(jobs, job, chosen, follow=follow, tail=tail):
            if line.replica != usual and not everyone:
                usual = line.replica
                display.print_line(err, f"{line.replica} failed: this is its log")
            text = f"[{line.replica}] {line.bare_text}" if everyone else line.text
            # A terminal gets colors and the last state of a progress bar; the console shows other
            # control characters. A file or a pipe gets what the replica wrote, as from kubectl:
            # who reads it compares and searches, and no terminal obeys it.
            if out.is_terminal:
                display.print_line(out, display.parse_colors(text))
            else:
                click.echo(text)

    options.on_job_or_folder(name, choice, act)
