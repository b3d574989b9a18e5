"""`tfparallel get`."""

import asyncio
import pathlib
from collections.abc import Sequence

import click

from tfparallel import errors, models
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.cli import complete, listing, options
from tfparallel.results import fetch, files, folder, stores
from tfparallel.terminal import wrapping
from tfparallel_operator.api import names


class _Nouns(options.CommandGroup):
    """A command that accepts the plural of its nouns, as kubectl does."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, {"jobs": "job"}.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_noun = self.get_command(ctx, args[0]) is not None or args[0].startswith("-")
        if not is_noun and not ctx.resilient_parsing:
            raise click.UsageError(f"{args[0]!r} is not `jobs` or `model`", ctx)
        return super().resolve_command(ctx, args)


@click.group("get", cls=_Nouns)
def command() -> None:
    """List jobs, or copy the trained model of a job to this machine."""


@command.command("job")
@click.argument(
    "job_names",
    metavar="[JOB]...",
    nargs=-1,
    shell_complete=complete.jobs,
    callback=options.bare_names,
)
@click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="List the jobs of all namespaces."
)
@click.option(
    "-l", "--selector", "labels", metavar="LABELS", help="Labels of the jobs, such as team=ml."
)
@click.option("-w", "--watch", is_flag=True, help="Print a line at each change, until Ctrl-C.")
@options.output_format
@options.cluster
def job(
    job_names: Sequence[str],
    *,
    everywhere: bool,
    labels: str | None,
    watch: bool,
    output_format: str,
    choice: access.ConnectionOptions,
) -> None:
    """List jobs as kubectl does; `get jobs` is the same.

    Exit status: 0 shown, 1 the cluster refuses or does not answer, 2 no such job.
    """
    if job_names and (everywhere or labels):
        raise click.UsageError("JOB names jobs of one namespace: leave it out, or -A and -l")
    if watch and len(job_names) > 1:
        raise click.UsageError("--watch follows one job, or all: give one name, or none")

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        if watch:
            for name in job_names:
                await cluster.get_job(name)  # or: there is none
            fields = "".join(f"metadata.name={name}" for name in job_names)
            changes = cluster.watch_jobs(everywhere=everywhere, labels=labels or "", fields=fields)
            await listing.follow(changes, output_format, everywhere=everywhere)
            return
        if job_names:
            jobs: Sequence[models.Job] = [await cluster.get_job(name) for name in job_names]
        else:
            jobs = await cluster.list_jobs(everywhere=everywhere, labels=labels or "")
        namespace = None if everywhere else cluster.namespace
        listing.show(jobs, output_format, namespace, single=len(job_names) == 1)
        if output_format in listing.TABLES:
            await listing.note_absence(cluster, jobs)

    options.on_cluster(choice, act)


@command.command("model")
@options.job_or_folder
@click.option(
    "--to",
    "target",
    type=options.FILE,
    metavar="DIR",
    help="Folder for the files.  [default: ./JOB-model]",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also copy SavedModel, summary, logs and last checkpoint; of a script, all files.",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="Image of the pod that reads the claim.  [default: that of the job]",
)
@options.results
@options.cluster
def model(
    name: str,
    *,
    target: pathlib.Path | None,
    everything: bool,
    image: str | None,
    path: str | None,
    choice: access.ConnectionOptions,
) -> None:
    """Copy model.keras of a job that has succeeded to this machine.

    It copies the file from the claim or bucket that keeps the job's checkpoints, or from the FOLDER
    of a local run, such as runs/JOB. For a script, it copies each *.keras file of the claim that
    the script mounts. To read a claim, it creates a temporary pod that mounts it read-only.

    Exit status: 0 copied, 1 the job has no model, or it cannot be read, 2 no such job.
    """
    part = files.ResultSelection.ALL if everything else files.ResultSelection.MODEL
    if folder.is_run(name):
        run = pathlib.Path(name)
        to = target or fetch.choose_folder(run.resolve().name)
        of_script = folder.find_of_script(run, path)
        store = of_script or folder.find(run)
        asyncio.run(_bring(store, part, to, name, is_script=of_script is not None))
        return

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        job = await cluster.get_job(name)
        _check_finished(job, part)
        async with stores.opened(
            cluster, job, stores.StoreOptions(image, path), wrapping.say
        ) as store:
            to = target or fetch.choose_folder(name)
            await _bring(store, part, to, name, is_script=job.is_script)

    options.on_cluster(choice, act)


def _check_finished(job: models.Job, part: files.ResultSelection) -> None:
    if job.state == names.State.SUCCEEDED or (
        part is files.ResultSelection.ALL and job.is_finished
    ):
        return
    if job.is_finished:
        raise errors.Failure(
            f"job {job.name!r} failed, so it has no model. Get its logs and its last checkpoint"
            f" with --all; see why it failed: tfparallel why {job.name}"
        )
    raise errors.Failure(
        f"job {job.name!r} has not finished: it is {job.state}, and the model is written at the"
        f" end. Follow it: tfparallel logs -f {job.name}"
    )


async def _bring(
    store: files.Store,
    part: files.ResultSelection,
    to: pathlib.Path,
    name: str,
    *,
    is_script: bool = False,
) -> None:
    fetched = await fetch.fetch(store, part, to, name, wrapping.say, is_script=is_script)
    for file in fetched if part is files.ResultSelection.MODEL else ():
        wrapping.echo(str(to / file.path))
    if part is files.ResultSelection.ALL:
        size = sum(file.size for file in fetched) / 2**20
        click.echo(f"{to}: {len(fetched)} files, {size:.1f} MiB")
