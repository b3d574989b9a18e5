"""`tfparallel report`."""

import asyncio
import pathlib

import click

from tfparallel import errors
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.backends.local import folders
from tfparallel.cli import options
from tfparallel.drawing import svg
from tfparallel.report import gather, page, run_records
from tfparallel.results import folder, stores
from tfparallel.terminal import wrapping
from tfparallel_operator import wall_clock

_FILE = "report.html"


@click.command("report")
@options.job_or_folder
@click.option(
    "-o",
    "--output",
    "file",
    type=options.FILE,
    metavar="FILE.html",
    help="Where the page goes.  [default: report.html in FOLDER, or JOB-report.html here]",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="Image of the pod that reads the claim.  [default: that of the job]",
)
@options.results
@options.cluster
def command(
    name: str,
    *,
    file: pathlib.Path | None,
    image: str | None,
    path: str | None,
    choice: access.ConnectionOptions,
) -> None:
    """Write one page of HTML about a job: what ran, how it trained, where its time went.

    The page shows loss and metrics, throughput, input wait and memory. It has a timeline of the
    attempts with their causes, and the pipeline of a split model. It needs no network. The records
    of a JOB come from the claim or the bucket that keeps its checkpoints, or from the claim that a
    script mounts. Those of a local run come from its FOLDER, such as runs/JOB. A job that runs is
    shown as far as it is.

    Exit status: 0 written, 1 the cluster refuses or the page cannot be written, 2 no such job, or a
    folder without a run.
    """
    if folder.is_run(name):
        run_folder = pathlib.Path(name)
        gathered = asyncio.run(gather.gather_folder(run_folder, path))
        _write(gathered, file or folder.newest(run_folder) / _FILE)
        return

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        run = await gather.gather_job(cluster, name, stores.StoreOptions(image, path), wrapping.say)
        _write(run, file or pathlib.Path(f"{name}-{_FILE}"))

    options.on_cluster(choice, act)


def _write(run: run_records.RunRecords, file: pathlib.Path) -> None:
    text = page.render(run, wall_clock.utc_now())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folders.write_whole(file, text)
    except OSError as error:
        raise errors.Failure(
            f"{file}: cannot be written: {error.strerror or error}. Choose another file with -o"
        ) from error
    click.echo(str(file))
    if not svg.is_available():
        wrapping.say(f"note: {file.name} has no pictures: {svg.MISSING}")
