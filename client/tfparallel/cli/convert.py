"""`tfparallel convert`."""

import pathlib
from collections.abc import Sequence

import click

from tfparallel.cli import options
from tfparallel.convert import command as conversion


@click.command("convert")
@click.argument("files", type=options.FILE, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--defaults",
    type=click.Choice(["tfjob", "tfparallel"]),
    default="tfjob",
    show_default=True,
    help="Of fields that a TFJob leaves out: written as TFJob has them, or left out as here.",
)
def command(files: Sequence[pathlib.Path], defaults: str) -> None:
    """Write TFJobs as TFParallelJobs; report what differs.

    The file - is standard input.

    Exit status: 0 all are converted, 2 bad input, and nothing is written.
    """
    converted = conversion.convert(files, write_defaults=defaults == "tfjob")
    for notice in converted.notices:
        click.echo(f"note: {notice}", err=True)
    click.echo(converted.text, nl=False)
