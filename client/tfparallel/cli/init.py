"""`tfparallel init`."""

import enum
import pathlib
import re
import sys

import click

from tfparallel import errors, job_templates
from tfparallel.cli import options


class Way(enum.StrEnum):
    """How to train the model."""

    SYNCHRONOUS = "synchronous"
    PARAMETER_SERVERS = "parameter-servers"
    MODEL_SPLIT = "model-split"
    SCRIPT = "script"
    """By a script of your own that calls tfparallel_trainer.fit."""

    @property
    def program(self) -> str:
        """The name of the file with the code."""
        return "train.py" if self is Way.SCRIPT else "model.py"


@click.command("init")
@click.argument("folder", type=options.FILE, default=".", metavar="[FOLDER]")
@click.option(
    "--way",
    type=click.Choice([way.value for way in Way]),
    help="How to train the model.  [default: the command asks; without a terminal, synchronous]",
)
def command(folder: pathlib.Path, *, way: str | None) -> None:
    """Write job.yaml and model.py of a job that you can run at once.

    With --way script it is train.py, which calls tfparallel_trainer.fit.

    Exit status: 0 written, 1 a file exists already, or the folder cannot be written to.
    """
    if way is None and sys.stdin.isatty():
        choices = click.Choice([choice.value for choice in Way])
        way = click.prompt("How do you train?", type=choices, default=Way.SYNCHRONOUS.value)
    chosen = Way(way or Way.SYNCHRONOUS)
    contents = {
        "job.yaml": job_templates.read(f"{chosen}.yaml", _job_name(folder)),
        chosen.program: job_templates.read(f"{chosen.program}.template"),
    }
    if existing := [name for name in contents if (folder / name).exists()]:
        raise errors.Failure(
            f"{folder}: {' and '.join(existing)} would be overwritten. Choose another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(content)
    except OSError as error:
        raise errors.Failure(
            f"{folder}: {error.strerror or error}. Give a folder that can be written to"
        ) from error
    click.echo(f"{folder / 'job.yaml'} and {folder / chosen.program} written")
    click.echo(f"train here: tfparallel run {folder / 'job.yaml'}")
    click.echo(f"train on a cluster: tfparallel submit {folder / 'job.yaml'}")


def _job_name(folder: pathlib.Path) -> str:
    """Return a valid Kubernetes name for the job, from the name of the folder."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower())[:30].strip("-")
    return name if re.match("[a-z]", name) else f"job-{name}".strip("-")
