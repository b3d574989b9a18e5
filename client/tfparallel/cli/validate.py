"""`tfparallel validate`."""

import pathlib
from collections.abc import Sequence

import click

from tfparallel.cli import options
from tfparallel_operator.api import load
from tfparallel_operator.local import cluster_checks, source


@click.command("validate")
@click.argument("files", type=options.FILE, nargs=-1, required=True, metavar="FILE...")
def command(files: Sequence[pathlib.Path]) -> None:
    """Check jobs as the API server would, without one."""
    problems: list[str] = []
    for file in files:
        try:
            documents = load.parse_documents(source.read_text(file), str(file))
            job = load.parse_manifest(load.find_job(documents, str(file)))
        except load.SpecError as error:
            problems += error.problems
        else:
            click.echo(f"{file}: valid")
            for warning in cluster_checks.find_warnings(job):
                click.echo(f"warning: {file}: {warning}", err=True)
    if problems:
        raise load.SpecError(*problems)
