"""`tfparallel convert`."""

import pathlib
from collections.abc import Sequence

import click

from tfparallel.cli import options
from tfparallel.convert import difference_report
from tfparallel.convert import file_conversion as conversion
from tfparallel.terminal import wrapping


@click.command("convert")
@click.argument("files", type=options.FILE, nargs=-1, required=True, metavar="FILE...")
@click.option("--diff", is_flag=True, help="Print what changes as a unified diff.")
@click.option(
    "--defaults",
    type=click.Choice(["kubeflow", "tfparallel"]),
    default="kubeflow",
    show_default=True,
    help="For fields that a job leaves out: write Kubeflow's defaults, or leave them out.",
)
def command(files: Sequence[pathlib.Path], diff: bool, defaults: str) -> None:
    """Write TFJobs and TrainJobs as TFParallelJobs; report what differs.

    The file - is standard input. Standard error gets a table of the differences by severity.

    Exit status: 0 all are converted, 2 bad input, and nothing is written.
    """
    result = conversion.convert(files, write_defaults=defaults == "kubeflow")
    for note in result.notes:
        wrapping.say(f"note: {note}")
    for line in difference_report.lines(result.reports):
        click.echo(line, err=True)
    if diff:
        click.echo("".join(file.diff() for file in result.files), nl=False)
    else:
        click.echo("---\n".join(file.after for file in result.files), nl=False)
