"""`tfparallel validate`."""

import pathlib
from collections.abc import Sequence

import click

from tfparallel import validation
from tfparallel.backends.cluster import access, cluster_backend
from tfparallel.cli import options
from tfparallel.terminal import wrapping
from tfparallel_operator.api import load


@click.command("validate")
@click.argument("paths", type=options.FILE, nargs=-1, required=True, metavar="FILE|DIR|-...")
@click.option(
    "--server",
    "ask_server",
    is_flag=True,
    help="Ask the API server too, by a dry run that stores nothing; you need the right to create"
    " jobs.",
)
@options.cluster
def command(
    paths: Sequence[pathlib.Path], *, ask_server: bool, choice: access.ConnectionOptions
) -> None:
    """Check jobs as the API server would, without one.

    A file may hold several jobs, and lists of them. Of a folder, the files .yaml, .yml and .json
    are read. The file - is the standard input. Each problem of each job has its file and line.
    Of a job with spec.trainer, the module next to the file is checked too, and not run.

    Exit status: 0 all jobs are valid, 1 the cluster refuses or does not answer, 2 one is not valid.
    """
    faults: list[str] = []
    valid = []
    for path in paths:
        jobs, unreadable = _read(path)
        faults += unreadable
        for job in jobs:
            problems = validation.check(job) or validation.check_module(job)
            faults += problems
            valid += [] if problems else [job]
    if ask_server and valid:
        valid, refused = _ask(choice, valid)
        faults += refused
    for job in valid:
        click.echo(f"{job.title}: valid")
        for warning in validation.find_warnings(job):
            wrapping.say(f"warning: {warning}")
    if faults:
        raise load.SpecError(*faults)


def _read(path: pathlib.Path) -> tuple[list[validation.ManifestJob], list[str]]:
    """Return the jobs at a path, and the problems of its files."""
    jobs: list[validation.ManifestJob] = []
    faults: list[str] = []
    try:
        files = validation.find_files(path)
    except load.SpecError as error:
        return jobs, list(error.problems)
    for file in files:
        try:
            jobs += validation.read_jobs(file)
        except load.SpecError as error:
            faults += error.problems
    return jobs, faults


def _ask(
    choice: access.ConnectionOptions, jobs: Sequence[validation.ManifestJob]
) -> tuple[list[validation.ManifestJob], list[str]]:
    """Return the jobs that the API server would accept, and its problems with the others."""

    async def act(
        cluster: cluster_backend.ClusterBackend,
    ) -> tuple[list[validation.ManifestJob], list[str]]:
        valid: list[validation.ManifestJob] = []
        faults: list[str] = []
        for job in jobs:
            problems = job.locate(await cluster.dry_run_job(job.document))
            faults += problems
            valid += [] if problems else [job]
        return valid, faults

    return options.on_cluster(choice, act)
