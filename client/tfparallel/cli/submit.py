"""`tfparallel submit`."""

import asyncio
import pathlib
import signal
import sys
from collections.abc import Mapping, Sequence

import click
import yaml

from tfparallel import errors, following, models, submission
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.cli import exits, listing, options
from tfparallel.terminal import display, wrapping
from tfparallel_operator.api import names


@click.command("submit")
@options.job_file
@options.epochs
@options.overrides
@options.variables
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME",
    help="Set a variable for each key of this Secret. Repeatable.",
)
@click.option("--name", metavar="NAME", help="Name of the job.  [default: that of the file]")
@click.option("--claim", metavar="SIZE", help="Create the checkpoints' claim, such as 10Gi.")
@click.option("-d", "--detach", is_flag=True, help="Return at once, and do not follow the job.")
@click.option("--dry-run", is_flag=True, help="Print what would be created, and create nothing.")
@options.cluster
def command(
    job: pathlib.Path,
    *,
    epochs: int | None,
    overrides: Sequence[str],
    variables: Mapping[str, str],
    secrets: Sequence[str],
    name: str | None,
    claim: str | None,
    detach: bool,
    dry_run: bool,
    choice: access.ConnectionOptions,
) -> None:
    """Send a job and its files to a cluster, and follow the job.

    It sends the folder of JOB.yaml and its subfolders, without the files that .tfparallelignore
    lists. Packages of requirements.txt are installed before training starts. A
    warning says if a divided model does not fit the GPUs that labels of templates or nodes name.

    Exit status: 0 the job succeeded (with -d: it was created), 1 it failed or the cluster refuses,
    2 bad input, 130 ended by Ctrl-C.
    """
    additions = submission.Additions(name, claim, variables, secrets)
    prepared = submission.read(job, options.with_epochs(overrides, epochs), additions)
    if dry_run:
        documents = (*prepared.companions, *prepared.sources, prepared.job)
        click.echo(yaml.safe_dump_all(map(dict, documents), sort_keys=False), nl=False)
        return

    async def act(cluster: cluster_backend.ClusterBackend) -> models.Job:
        if (misfit := await cluster.find_misfit(prepared)) is not None:
            wrapping.say(f"warning: {misfit}")
        created = await cluster.submit(prepared)
        files = sum(map(len, (c["binaryData"]["chunk"] for c in prepared.sources))) * 3 // 4
        sent = f" with {files / 1024:.0f} KiB of files" if prepared.sources else ""
        wrapping.say(f"{names.SINGULAR}/{created.name} created{sent}")
        await listing.note_absence(cluster, [created])
        return created if detach else await _follow(cluster, created)

    finished = options.on_cluster(choice, act)
    if not detach and finished.state != names.State.SUCCEEDED:
        sys.exit(exits.FAILED)


async def _follow(cluster: cluster_backend.ClusterBackend, job: models.Job) -> models.Job:
    """Show the job until it ends; on Ctrl-C, ask whether to delete it."""
    with display.Display((), is_of_trainer=not job.is_script) as screen:
        shown = asyncio.create_task(following.follow(cluster, job, screen))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, shown.cancel)
        try:
            finished = await shown
        except asyncio.CancelledError:
            screen.close()
            await _ask(cluster, job)
            raise errors.Stopped(signal.SIGINT) from None
    out, err = display.consoles()
    message = next((c.message for c in finished.status.conditions if c.type == finished.state), "")
    console = out if finished.state == names.State.SUCCEEDED else err
    suffix = "" if screen.has_shown(message) else f": {message}"
    display.print_line(console, f"{finished.state}: {job.name}{suffix}")
    keeps_results = (finished.manifest["spec"].get("trainer") or {}).get("checkpoint")
    if finished.state == names.State.SUCCEEDED and keeps_results:
        display.print_line(out, f"get its model: tfparallel get model {job.name}")
    return finished


async def _ask(cluster: cluster_backend.ClusterBackend, job: models.Job) -> None:
    """Ask whether to delete the job; without a terminal, leave it running."""
    follow = f"follow it: tfparallel logs -f {job.name}; delete it: tfparallel delete {job.name}"
    if sys.stdin.isatty():
        answer = await asyncio.to_thread(
            click.prompt,
            f"{job.name} is still running. Leave it, or delete it?",
            type=click.Choice(["leave", "delete"]),
            default="leave",
            err=True,
        )
        if answer == "delete":
            await cluster.delete_job(job.name)
            wrapping.say(f"{job.name} deleted")
            return
    wrapping.say(f"{job.name} is still running; {follow}")
